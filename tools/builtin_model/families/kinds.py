"""Kinds of things with members, for picking one and for telling kinds apart."""

_LISTS = """
city|cities: Paris, Amsterdam, London, Berlin, Madrid, Rome, Vienna, Oslo, Lisbon, Dublin, Prague,
  Athens, Warsaw, Helsinki, Tokyo, Seoul, Cairo, Sydney, Toronto, Lima, Nairobi, Mumbai, Bangkok,
  Chicago, Boston, Istanbul, Budapest, Stockholm, Havana, Melbourne
country|countries: France, Germany, Spain, Italy, Norway, Sweden, Japan, China, India, Brazil,
  Peru, Chile, Egypt, Kenya, Canada, Mexico, Poland, Greece, Ireland, Iceland, Turkey, Vietnam,
  Ghana, Cuba
colour|colours: red, blue, green, yellow, orange, purple, pink, brown, black, white, grey,
  turquoise, violet, beige
color|colors: red, blue, green, yellow, orange, purple, pink, brown, black, white, gray,
  turquoise, violet, beige
animal|animals: dog, cat, horse, cow, lion, tiger, elephant, giraffe, zebra, bear, wolf, fox,
  rabbit, monkey, panda, kangaroo, otter, camel, goat, sheep
fruit|fruits: apple, banana, orange, pear, mango, kiwi, peach, plum, cherry, grape, lemon,
  pineapple, melon, fig, papaya, apricot
vegetable|vegetables: carrot, potato, tomato, onion, cabbage, spinach, broccoli, pepper, celery,
  leek, pumpkin, pea, lettuce, radish
planet|planets: Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus, Neptune
month|months: January, February, March, April, May, June, July, August, September, October,
  November, December
day of the week|days of the week: Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday
season|seasons: spring, summer, autumn, winter
sport|sports: football, tennis, basketball, swimming, hockey, rugby, golf, boxing, cricket,
  volleyball, skiing, rowing, cycling, judo
musical instrument|musical instruments: piano, guitar, violin, flute, drum, trumpet, cello, harp,
  clarinet, saxophone, banjo, oboe
language|languages: English, French, German, Spanish, Italian, Dutch, Swedish, Polish, Arabic,
  Hindi, Japanese, Korean, Turkish, Greek
river|rivers: Nile, Amazon, Danube, Rhine, Thames, Seine, Volga, Ganges, Mississippi, Mekong,
  Elbe, Loire
mountain|mountains: Everest, Kilimanjaro, Mont Blanc, Matterhorn, Fuji, Denali, Elbrus, Olympus,
  Etna, K2
flower|flowers: rose, tulip, lily, daisy, orchid, sunflower, violet, iris, poppy, lotus, jasmine,
  peony
tree|trees: oak, pine, maple, birch, willow, elm, beech, cedar, ash, palm, spruce, poplar
bird|birds: eagle, sparrow, owl, robin, crow, parrot, penguin, swan, pigeon, falcon, heron, stork
fish|fish: salmon, trout, tuna, cod, carp, shark, eel, herring, pike, perch
insect|insects: ant, bee, wasp, butterfly, beetle, moth, fly, cricket, mosquito, dragonfly
metal|metals: iron, gold, silver, copper, zinc, tin, lead, nickel, aluminium, titanium
chemical element|chemical elements: hydrogen, helium, carbon, nitrogen, oxygen, neon, sodium,
  iron, gold, silver, copper, zinc
profession|professions: teacher, doctor, nurse, baker, farmer, pilot, lawyer, engineer, painter,
  carpenter, driver, writer, chef, plumber
tool|tools: hammer, saw, drill, screwdriver, wrench, pliers, chisel, axe, shovel, rake
vehicle|vehicles: car, bus, train, bicycle, truck, plane, boat, tram, scooter, helicopter
drink|drinks: water, tea, coffee, milk, juice, lemonade, cocoa, cider, soda, wine
dish|dishes: pizza, soup, pasta, curry, stew, salad, omelette, lasagna, risotto, pancakes
spice|spices: pepper, cinnamon, ginger, saffron, paprika, cumin, nutmeg, vanilla, turmeric, clove
hobby|hobbies: reading, painting, chess, gardening, hiking, cooking, knitting, fishing, dancing,
  photography
shape|shapes: circle, square, triangle, rectangle, oval, star, pentagon, hexagon, cube, sphere
gemstone|gemstones: diamond, ruby, emerald, sapphire, opal, topaz, pearl, jade, garnet, amethyst
fabric|fabrics: cotton, silk, wool, linen, velvet, denim, satin, felt, nylon, lace
piece of furniture|pieces of furniture: chair, table, sofa, bed, desk, shelf, wardrobe, bench,
  stool, cupboard
dance|dances: waltz, tango, salsa, samba, polka, foxtrot, rumba, ballet, flamenco, swing
continent|continents: Africa, Asia, Europe, Antarctica, Australia, North America, South America
currency|currencies: euro, dollar, pound, yen, franc, krona, peso, rupee, real, rand
body part|body parts: hand, foot, arm, leg, head, nose, ear, knee, elbow, shoulder
emotion|emotions: joy, anger, fear, sadness, surprise, pride, hope, envy, love, shame
chess piece|chess pieces: king, queen, rook, bishop, knight, pawn
programming language|programming languages: Python, Java, Rust, Go, Ruby, Haskell, Kotlin, Swift,
  Perl, Scala
kitchen item|kitchen items: fork, knife, spoon, plate, bowl, pan, pot, cup, ladle, whisk
piece of clothing|pieces of clothing: shirt, coat, sock, hat, scarf, glove, dress, skirt, jacket,
  belt
room|rooms: kitchen, bedroom, bathroom, attic, cellar, hall, study, garage, pantry, library
building|buildings: church, school, museum, hospital, castle, library, theatre, station, tower,
  bank
school subject|school subjects: history, biology, physics, music, art, geography, chemistry,
  mathematics, English, sports
weather word|weather words: rain, snow, sun, fog, wind, storm, hail, thunder, frost, cloud
art form|art forms: painting, sculpture, theatre, poetry, film, opera, ballet, music, dance,
  photography
dog breed|dog breeds: beagle, poodle, collie, terrier, husky, boxer, pug, dachshund, spaniel,
  mastiff
cheese|cheeses: brie, cheddar, gouda, feta, parmesan, camembert, mozzarella, edam, ricotta,
  stilton
bread|breads: baguette, rye, pita, naan, ciabatta, bagel, brioche, toast, focaccia, pretzel
greek letter|greek letters: alpha, beta, gamma, delta, epsilon, zeta, eta, theta, lambda, omega
first name|first names: Alice, Ben, Clara, David, Emma, Felix, Grace, Hugo, Ines, Jonas, Laura,
  Max, Nina, Oscar, Paula
""".strip()


def _parse(text: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    kinds: dict[str, tuple[str, tuple[str, ...]]] = {}
    for line in text.replace("\n  ", " ").splitlines():
        head, _, members = line.partition(": ")
        one, _, many = head.partition("|")
        kinds[one] = (many, tuple(members.split(", ")))
    return kinds


KINDS = _parse(_LISTS)
"""Kind -> (plural, members)."""

ALL_WORDS = tuple(
    word for kind, (plural, members) in KINDS.items() for word in (kind, plural, *members)
)
