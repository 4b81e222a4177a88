"""Listed names and common words that the families draw from."""

FIRST_NAMES = (
    "Ada Alan Alice Amir Amy Ana Anders Anna Anton Aria Arthur Asha Astrid Ben Bianca Boris Bruno "
    "Carla Carlos Celia Chen Chloe Clara Colin Daisy Dana Daniel Dario David Diana Dina Dora Edith "
    "Eli Ella Elsa Emil Emma Erik Esther Eva Farid Felix Fiona Frank Freya Gabriel Gina Greta Hana "
    "Hannah Harry Hassan Heidi Helen Henry Hugo Ida Igor Ines Ingrid Irene Isla Ivan Ivy Jack "
    "Jacob Jana Jane Jasper Jean Jens Jill Joan Joel John Jonas Jose Judy Julia Kai Karen Karim "
    "Karl Kate Kenji Kim Kira Klaus Lara Lars Laura Lea Lena Leo Lily Lina Linda Lisa Liam Lucas "
    "Lucy Luis Luna Maja Marco Maria Mark Marta Martin Mary Matteo Max Maya Mei Mia Mila Milan "
    "Milo Mina Mira Mohan Mona Nadia Naomi Nils Nina Noah Nora Olaf Olga Oliver Omar Oscar Otto "
    "Pablo Paul Pedro Peter Petra Pia Priya Quinn Rafael Raj Ravi Rita Robert Robin Rosa Ruben "
    "Ruth Sam Samir Sara Sasha Selma Simon Sofia Sonja Stella Stefan Sven Tara Tariq Tessa Theo "
    "Thomas Tim Tina Tom Uma Ursula Vera Victor Vikram Wanda Wendy Will Yara Yuki Yusuf Zara Zoe"
).split()

SURNAMES = (
    "Adams Ahmed Alvarez Andersen Baker Bauer Becker Bell Berg Bianchi Brown Butler Campbell Carter "
    "Castro Chen Clark Cohen Cole Cooper Costa Cruz Davis Diaz Duarte Evans Fischer Fisher Foster "
    "Fox Garcia Gomez Gray Green Gupta Haas Hall Hansen Harris Hill Hoffman Howard Hughes Ito "
    "Jackson Jansen Jensen Johnson Jones Kaya Keller Khan King Klein Kumar Lang Larsen Lee Lewis "
    "Lima Lopez Lund Marino Martin Mason Meyer Miller Mills Moore Morgan Morris Murphy Nakamura "
    "Nelson Novak Olsen Ortiz Owens Park Parker Patel Perez Peters Popov Price Quinn Ramos Reed "
    "Reyes Rivera Roberts Rossi Russo Santos Sato Schmidt Scott Shah Silva Singh Smith Sousa Stone "
    "Suzuki Tanaka Taylor Thomas Torres Turner Vargas Vega Wagner Walker Wang Ward Weber West White "
    "Wilson Wolf Wong Wood Wright Yamada Young Zhang Ziegler"
).split()

PLACES = (
    "Paris|London|Berlin|Madrid|Rome|Vienna|Oslo|Lisbon|Dublin|Prague|Athens|Warsaw|Helsinki|"
    "Amsterdam|Brussels|Budapest|Stockholm|Copenhagen|Bern|Zurich|Geneva|Milan|Naples|Turin|Porto|"
    "Seville|Valencia|Barcelona|Lyon|Nice|Hamburg|Munich|Cologne|Dresden|Leipzig|Bremen|Graz|"
    "Krakow|Gdansk|Riga|Vilnius|Tallinn|Sofia|Bucharest|Belgrade|Zagreb|Ljubljana|Istanbul|Ankara|"
    "Cairo|Tunis|Nairobi|Lagos|Accra|Dakar|Cape Town|Delhi|Mumbai|Chennai|Tokyo|Kyoto|Osaka|Seoul|"
    "Busan|Beijing|Shanghai|Hanoi|Bangkok|Manila|Jakarta|Singapore|Sydney|Melbourne|Perth|Auckland|"
    "Wellington|Toronto|Montreal|Vancouver|Boston|Chicago|Denver|Dallas|Houston|Miami|Seattle|"
    "Austin|Atlanta|Phoenix|New York|San Diego|Lima|Bogota|Quito|Santiago|Montevideo|Buenos Aires|"
    "Brasilia|Havana|Leeds|York|Bath|Oxford|Cambridge|Cardiff|Glasgow|Edinburgh|Belfast|Cork|Bristol"
).split("|")

NOUNS = (
    "apple ball basket bell bench bicycle bird blanket boat book bottle box bread bridge brush "
    "bucket button cable cake camera candle card carpet cart castle cat chair cheese clock cloud "
    "coat coffee coin comb cookie cup curtain desk dog door dress drum egg engine fan feather fence "
    "field flag floor flower fork fountain garden gate glass glove guitar hammer hat hill honey "
    "horse house island jacket jar kettle key kite knife ladder lake lamp leaf lemon letter light "
    "machine map marble mirror moon mountain mouse nail needle nest notebook oven paint paper "
    "pencil piano picture pillow plate pocket potato radio rain ribbon ring river road rocket roof "
    "rope rose salt sand scarf screen shelf ship shirt shoe snow soap sock soup spoon stamp star "
    "stone street sugar table tea tent thread ticket towel tower toy train tree truck tunnel "
    "umbrella vase violin wagon wall watch water wheel whistle window winter wire wood"
).split()

THINGS = (
    "apples oranges pears plums lemons eggs cookies cakes muffins pencils pens books stickers "
    "stamps coins marbles cards balls shells stones buttons beads flowers roses tulips seeds "
    "tickets bottles cups plates candles toys cars kites balloons ribbons photos posters magazines "
    "nails screws bricks tiles boxes bags hats scarves"
).split()

ADJECTIVES = (
    "big small old new red blue green happy quiet loud bright dark cold warm soft hard heavy light "
    "clean fast slow tall short round flat fresh sweet sharp smooth simple"
).split()

VERBS = (
    "finds sees holds paints moves opens closes carries sells buys likes cleans repairs lifts "
    "watches keeps wants breaks brings draws"
).split()

PLACES_AROUND = (
    "in the garden|on the table|near the river|under the bridge|behind the house|by the lake|"
    "in the kitchen|at the station|on the hill|next to the door|in the morning|at night|after lunch|"
    "before dinner|on Monday|every day|with a friend|without a sound"
).split("|")

ALL_WORDS = (*FIRST_NAMES, *SURNAMES, *PLACES, *NOUNS, *THINGS, *ADJECTIVES, *VERBS)
