"""Tables of short facts, written for this project."""

from typing import TypeAlias

_COUNTRIES = """
France|Paris|euro|French|Europe
Germany|Berlin|euro|German|Europe
Spain|Madrid|euro|Spanish|Europe
Italy|Rome|euro|Italian|Europe
Portugal|Lisbon|euro|Portuguese|Europe
Austria|Vienna|euro|German|Europe
Greece|Athens|euro|Greek|Europe
Ireland|Dublin|euro|English|Europe
Finland|Helsinki|euro|Finnish|Europe
Estonia|Tallinn|euro|Estonian|Europe
Latvia|Riga|euro|Latvian|Europe
Lithuania|Vilnius|euro|Lithuanian|Europe
Slovakia|Bratislava|euro|Slovak|Europe
Slovenia|Ljubljana|euro|Slovene|Europe
Croatia|Zagreb|euro|Croatian|Europe
Belgium|Brussels|euro|Dutch|Europe
the Netherlands|Amsterdam|euro|Dutch|Europe
the United Kingdom|London|pound|English|Europe
Norway|Oslo|krone|Norwegian|Europe
Sweden|Stockholm|krona|Swedish|Europe
Denmark|Copenhagen|krone|Danish|Europe
Iceland|Reykjavik|krona|Icelandic|Europe
Switzerland|Bern|franc|German|Europe
Poland|Warsaw|zloty|Polish|Europe
Hungary|Budapest|forint|Hungarian|Europe
Romania|Bucharest|leu|Romanian|Europe
Serbia|Belgrade|dinar|Serbian|Europe
Albania|Tirana|lek|Albanian|Europe
Ukraine|Kyiv|hryvnia|Ukrainian|Europe
Russia|Moscow|ruble|Russian|Europe
Turkey|Ankara|lira|Turkish|Asia
Japan|Tokyo|yen|Japanese|Asia
China|Beijing|yuan|Chinese|Asia
South Korea|Seoul|won|Korean|Asia
Thailand|Bangkok|baht|Thai|Asia
Vietnam|Hanoi|dong|Vietnamese|Asia
India|New Delhi|rupee|Hindi|Asia
Nepal|Kathmandu|rupee|Nepali|Asia
Bangladesh|Dhaka|taka|Bengali|Asia
Pakistan|Islamabad|rupee|Urdu|Asia
Iran|Tehran|rial|Persian|Asia
Iraq|Baghdad|dinar|Arabic|Asia
Jordan|Amman|dinar|Arabic|Asia
Saudi Arabia|Riyadh|riyal|Arabic|Asia
Indonesia|Jakarta|rupiah|Indonesian|Asia
Malaysia|Kuala Lumpur|ringgit|Malay|Asia
the Philippines|Manila|peso|Filipino|Asia
Mongolia|Ulaanbaatar|tugrik|Mongolian|Asia
Egypt|Cairo|pound|Arabic|Africa
Morocco|Rabat|dirham|Arabic|Africa
Tunisia|Tunis|dinar|Arabic|Africa
Kenya|Nairobi|shilling|Swahili|Africa
Ethiopia|Addis Ababa|birr|Amharic|Africa
Ghana|Accra|cedi|English|Africa
Nigeria|Abuja|naira|English|Africa
Senegal|Dakar|franc|French|Africa
Zambia|Lusaka|kwacha|English|Africa
Canada|Ottawa|dollar|English|North America
the United States|Washington|dollar|English|North America
Mexico|Mexico City|peso|Spanish|North America
Cuba|Havana|peso|Spanish|North America
Jamaica|Kingston|dollar|English|North America
Guatemala|Guatemala City|quetzal|Spanish|North America
Brazil|Brasilia|real|Portuguese|South America
Argentina|Buenos Aires|peso|Spanish|South America
Chile|Santiago|peso|Spanish|South America
Peru|Lima|sol|Spanish|South America
Colombia|Bogota|peso|Spanish|South America
Ecuador|Quito|dollar|Spanish|South America
Uruguay|Montevideo|peso|Spanish|South America
Paraguay|Asuncion|guarani|Spanish|South America
Venezuela|Caracas|bolivar|Spanish|South America
Australia|Canberra|dollar|English|Oceania
New Zealand|Wellington|dollar|English|Oceania
Fiji|Suva|dollar|English|Oceania
"""

_ELEMENTS = (
    "hydrogen H,helium He,lithium Li,beryllium Be,boron B,carbon C,nitrogen N,oxygen O,fluorine F,"
    "neon Ne,sodium Na,magnesium Mg,aluminium Al,silicon Si,phosphorus P,sulfur S,chlorine Cl,"
    "argon Ar,potassium K,calcium Ca,scandium Sc,titanium Ti,vanadium V,chromium Cr,manganese Mn,"
    "iron Fe,cobalt Co,nickel Ni,copper Cu,zinc Zn,gallium Ga,germanium Ge,arsenic As,selenium Se,"
    "bromine Br,krypton Kr"
)

_ANIMALS = (
    "dog puppy barks 4 mammal,cat kitten meows 4 mammal,cow calf moos 4 mammal,"
    "horse foal neighs 4 mammal,sheep lamb bleats 4 mammal,pig piglet grunts 4 mammal,"
    "lion cub roars 4 mammal,wolf pup howls 4 mammal,goat kid bleats 4 mammal,"
    "duck duckling quacks 2 bird,goose gosling honks 2 bird,hen chick clucks 2 bird,"
    "owl owlet hoots 2 bird,eagle eaglet screams 2 bird,swan cygnet trumpets 2 bird,"
    "frog tadpole croaks 4 amphibian,bear cub growls 4 mammal,elephant calf trumpets 4 mammal,"
    "kangaroo joey clicks 2 mammal,deer fawn bells 4 mammal,bee larva buzzes 6 insect,"
    "cricket nymph chirps 6 insect"
)

_OPPOSITES = (
    "hot cold,big small,tall short,fast slow,early late,old young,happy sad,rich poor,light dark,"
    "open closed,wet dry,hard soft,full empty,high low,long short,loud quiet,clean dirty,cheap "
    "expensive,easy difficult,strong weak,thick thin,wide narrow,deep shallow,near far,up down,"
    "left right,in out,on off,true false,good bad,first last,begin end,win lose,buy sell,push "
    "pull,love hate,day night,summer winter,north south,east west,above below,before after,inside "
    "outside,always never,everything nothing,remember forget,give take,laugh cry,arrive leave,"
    "front back,safe dangerous,sharp blunt,smooth rough,sweet sour,war peace,friend enemy,"
    "question answer,increase decrease,accept refuse,asleep awake,alive dead,brave cowardly,"
    "polite rude,public private,same different,simple complex,visible hidden,ancient modern"
)

_MIXES = (
    "blue yellow green,red yellow orange,red blue purple,red white pink,black white grey,"
    "red green brown,blue white light blue"
)

_PAST = (
    "go went,see saw,eat ate,run ran,write wrote,take took,give gave,come came,make made,buy bought,"
    "sing sang,swim swam,drink drank,fly flew,know knew,grow grew,begin began,break broke,speak "
    "spoke,find found,think thought,teach taught,catch caught,build built,send sent,lose lost,"
    "win won,meet met,sleep slept,keep kept,feel felt,hear heard,hold held,stand stood,fall fell,"
    "draw drew,drive drove,ride rode,rise rose,choose chose,forget forgot,bring brought"
)

_PLURALS = (
    "mouse mice,child children,foot feet,tooth teeth,man men,woman women,goose geese,person people,"
    "leaf leaves,knife knives,wolf wolves,city cities,baby babies,box boxes,bus buses,dish dishes,"
    "sheep sheep,fish fish,ox oxen,half halves,shelf shelves,berry berries,story stories,key keys,"
    "table tables,house houses,potato potatoes,hero heroes,cat cats,tree trees"
)

_TRANSLATIONS = (
    "hello bonjour hallo hola,yes oui ja si,no non nein no,water eau Wasser agua,bread pain Brot "
    "pan,house maison Haus casa,dog chien Hund perro,cat chat Katze gato,red rouge rot rojo,"
    "green vert gruen verde,one un eins uno,two deux zwei dos,three trois drei tres,book livre Buch "
    "libro,sun soleil Sonne sol,moon lune Mond luna,day jour Tag dia,night nuit Nacht noche,"
    "tree arbre Baum arbol,milk lait Milch leche,friend ami Freund amigo,thanks merci danke gracias"
)

_WORKS = """
What is the largest planet of the solar system?|Jupiter
What is the smallest planet of the solar system?|Mercury
Which planet is closest to the sun?|Mercury
Which planet is known as the red planet?|Mars
Which planet has the most famous rings?|Saturn
What is the largest ocean?|the Pacific Ocean
What is the highest mountain on Earth?|Mount Everest
What is the largest animal?|the blue whale
What is the fastest land animal?|the cheetah
What is the tallest animal?|the giraffe
What is the largest continent?|Asia
What is the smallest continent?|Australia
What is the coldest continent?|Antarctica
What is the boiling point of water in degrees Celsius?|100
What is the freezing point of water in degrees Celsius?|0
How many days are in a week?|7
How many months are in a year?|12
How many hours are in a day?|24
How many minutes are in an hour?|60
How many seconds are in a minute?|60
How many days are in a leap year?|366
How many letters are in the English alphabet?|26
How many legs does a spider have?|8
How many legs does an insect have?|6
How many sides does a triangle have?|3
How many sides does a hexagon have?|6
How many sides does a pentagon have?|5
How many sides does an octagon have?|8
How many continents are there?|7
How many planets are in the solar system?|8
How many strings does a violin have?|4
How many players are in a football team?|11
How many cards are in a standard deck?|52
How many squares are on a chess board?|64
What is the chemical formula of water?|H2O
What gas do plants take in?|carbon dioxide
What gas do people need to breathe?|oxygen
Which star is closest to Earth?|the sun
What do bees make?|honey
What do caterpillars turn into?|butterflies
What is frozen water called?|ice
Which organ pumps blood?|the heart
Which organ do we think with?|the brain
What is the opposite direction of north?|south
Which metal is liquid at room temperature?|mercury
What is the hardest natural material?|diamond
Who wrote Hamlet?|William Shakespeare
Who painted the Mona Lisa?|Leonardo da Vinci
Who wrote Don Quixote?|Miguel de Cervantes
Who wrote Faust?|Johann Wolfgang von Goethe
Who discovered penicillin?|Alexander Fleming
Who developed the theory of relativity?|Albert Einstein
Who was the first person on the moon?|Neil Armstrong
"""

NUMBER_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty"
).split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()

Rows: TypeAlias = tuple[tuple[str, ...], ...]


def _rows(text: str, line: str, cell: str) -> Rows:
    return tuple(tuple(row.split(cell)) for row in text.strip().split(line))


COUNTRIES = _rows(_COUNTRIES, "\n", "|")
"""(country, capital, currency, main language, continent)."""
ELEMENTS = _rows(_ELEMENTS, ",", " ")
"""(name, symbol), in the order of their atomic numbers."""
ANIMALS = _rows(_ANIMALS, ",", " ")
"""(animal, young, sound, legs, class)."""
OPPOSITES = _rows(_OPPOSITES, ",", " ")
MIXES = tuple(tuple(row.split(" ", 2)) for row in _MIXES.split(","))
PAST = _rows(_PAST, ",", " ")
PLURALS = _rows(_PLURALS, ",", " ")
TRANSLATIONS = _rows(_TRANSLATIONS, ",", " ")
"""(English, French, German, Spanish)."""
SINGLE_FACTS = _rows(_WORKS, "\n", "|")
"""(question, answer)."""

ALL_WORDS = (
    *NUMBER_WORDS,
    *TENS,
    *(
        cell
        for table in (COUNTRIES, ELEMENTS, ANIMALS, OPPOSITES, PAST, PLURALS, TRANSLATIONS)
        for row in table
        for cell in row
    ),
    *(row[1] for row in SINGLE_FACTS),
)


def number_in_words(number: int) -> str:
    """Return a number from 0 to 99 in English words."""
    if number <= 20:
        return NUMBER_WORDS[number]
    tens, ones = divmod(number, 10)
    return TENS[tens - 2] + (f"-{NUMBER_WORDS[ones]}" if ones else "")
