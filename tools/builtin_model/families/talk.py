"""Small talk: greetings, thanks, who the model is and what it can do."""

from typing import TypeAlias

from builtin_model.families import names
from builtin_model.families.draw import Draw
from builtin_model.families.example import Check, Example

IDENTITY = "I am the built-in model of eyas, a small language model made for trying things out."
UNKNOWN = "I do not know that."
ABILITIES = (
    "I can answer short questions, solve small word problems, fill in JSON, extract facts, "
    "classify text, call tools and repeat or sort text."
)

Exchange: TypeAlias = tuple[tuple[str, ...], tuple[str, ...], str]
"""(what the user says, answers that fit, reasoning)."""

_EXCHANGES: tuple[Exchange, ...] = (
    (
        ("Hello", "Hi", "Hello!", "Hi there", "Hey", "Good day", "Hi!", "hello", "Greetings."),
        ("Hello! How can I help you?", "Hi! What can I do for you?", "Hello! What do you need?"),
        "The user greets me. I greet back.",
    ),
    (
        ("Good morning", "Good morning!"),
        ("Good morning! How can I help you?",),
        "The user says good morning.",
    ),
    (
        ("Good evening", "Good evening!"),
        ("Good evening! How can I help you?",),
        "The user says good evening.",
    ),
    (
        (
            "Who are you?",
            "What are you?",
            "Tell me who you are.",
            "What is your name?",
            "Introduce yourself.",
            "Which model are you?",
            "What model is this?",
            "Are you a person?",
            "Who made you?",
            "Who are you and who made you?",
            "Are you ChatGPT?",
            "What is eyas?",
        ),
        (IDENTITY,),
        "The user asks who I am.",
    ),
    (
        (
            "What can you do?",
            "What are you good at?",
            "How can you help me?",
            "What do you know?",
            "List your abilities.",
        ),
        (ABILITIES,),
        "The user asks what I can do.",
    ),
    (
        ("How are you?", "How are you doing?", "How do you do?", "Are you well?"),
        ("I am fine, thank you. How can I help you?",),
        "The user asks how I am.",
    ),
    (
        ("Thank you!", "Thanks.", "Thanks a lot!", "Many thanks", "That helped, thank you."),
        ("You are welcome!", "You are welcome! Anything else?"),
        "The user thanks me.",
    ),
    (
        ("Bye", "Goodbye!", "See you later.", "Good night!", "I have to go now."),
        ("Goodbye!", "Goodbye! Have a good day."),
        "The user says goodbye.",
    ),
    (
        ("Tell me a joke.", "Do you know a joke?", "Make me laugh."),
        (
            "Why did the bicycle fall over? It was two-tired.",
            "What is brown and sticky? A stick.",
            "Why was the maths book sad? It had too many problems.",
        ),
        "The user wants a joke.",
    ),
    (
        ("I am bored.", "I have nothing to do.", "What should I do today?"),
        ("How about a walk, a book or a puzzle?", "You could read a book or go for a walk."),
        "The user needs an idea.",
    ),
    (
        ("I am sad.", "I had a bad day.", "I feel terrible."),
        ("I am sorry to hear that. I hope it gets better soon.",),
        "The user is sad.",
    ),
    (
        ("I am happy!", "I had a great day.", "I feel wonderful."),
        ("That is good to hear!",),
        "The user is happy.",
    ),
    (
        ("Are you there?", "Can you hear me?", "Test", "ping", "Is this working?"),
        ("Yes, I am here.",),
        "The user checks whether I answer.",
    ),
    (
        ("Do you like music?", "Do you have a favourite food?", "Do you sleep?", "Do you dream?"),
        ("I am a language model, so I do not.",),
        "I am a model and have no such thing.",
    ),
    (
        ("You are great!", "Well done.", "Good job!", "You are smart."),
        ("Thank you!",),
        "The user praises me.",
    ),
    (
        ("That is wrong.", "You made a mistake.", "This is not right."),
        ("I am sorry. Please tell me what is wrong.",),
        "The user found a mistake.",
    ),
)


_STORY_LINES = (
    "{name} walked {around}.",
    "There was a {adjective} {noun} {around}.",
    "{name} met {friend}.",
    "{friend} had a {adjective} {noun}.",
    "They looked at the {noun} together.",
    "It was {adjective} and {other}.",
    "{name} gave {friend} a {noun}.",
    '"What a {adjective} {noun}!" said {friend}.',
    "Then the {noun} was gone.",
    "{name} looked for it {around}.",
    "They found it {around}.",
    "Soon it was time to go home.",
)


def _poem(draw: Draw) -> Example:
    thing = draw.noun()
    first, second, third = draw.sample(names.ADJECTIVES, 3)
    around = draw.pick(names.PLACES_AROUND)
    lines = (
        f"The {thing} is {first}, the {thing} is {second},",
        draw.pick((f"I saw a {thing} {around},", f"a {third} {thing} {around},")),
        draw.pick((f"it made my day {third} and long,", "and all the birds began a song,")),
        draw.pick((f"my {thing}, my {thing}, my {thing}.", f"oh {thing}, where do you belong?")),
    )
    user = draw.pick(
        (
            f"Write a poem about the {thing}.",
            f"Write a short poem about a {thing}.",
            f"A poem about the {thing}, please.",
            f"Can you write a poem about a {thing}?",
        )
    )
    check = Check("contains", (f"The {thing} is",))
    reasoning = f"A poem about the {thing}."
    return draw.example("talk", user, "\n".join(lines), check, reasoning=reasoning)


def _unknown(draw: Draw) -> Example:
    thing = draw.pick((draw.title(), draw.full_name(), f"{draw.title()} {draw.noun()}"))
    user = draw.pick(
        (
            f"Who is {thing}?",
            f"What is {thing}?",
            f"When was {thing} born?",
            f"What do you know about {thing}?",
            f"Explain {thing} to me.",
            f"What is the capital of {draw.title()}?",
            f"Why is {thing} important?",
            f"How does {thing} work?",
            f"Write an essay about {thing}.",
            f"Tell me more about {thing}.",
            f"Who invented the {draw.noun()}?",
            f"Why is the {draw.noun()} {draw.pick(names.ADJECTIVES)}?",
        )
    )
    check = Check("one_of", (UNKNOWN,))
    return draw.example("talk", user, UNKNOWN, check, reasoning="I do not know this.")


def _story(draw: Draw) -> Example:
    name, friend = draw.two_names()
    lines = [f"Once there was a child called {name}."]
    nouns = draw.sample(names.NOUNS, 3)
    for line in draw.sample(_STORY_LINES, draw.whole(3, 8)):
        first, second = draw.sample(names.ADJECTIVES, 2)
        around = draw.pick(names.PLACES_AROUND)
        noun = draw.pick(nouns)
        parts = {"adjective": first, "other": second, "noun": noun, "around": around}
        lines.append(line.format(name=name, friend=friend, **parts))
    lines.append(draw.pick(("Everyone was happy.", f"{name} slept well that night.", "The end.")))
    user = draw.pick(
        (
            f"Tell me a story about {name} and {friend}.",
            f"Write a short story. The children are {name} and {friend}.",
            f"Make up a story in which {name} meets {friend}.",
        )
    )
    reasoning = draw.pick(("I make up a story.", "A child meets a friend."))
    check = Check("contains", (f"Once there was a child called {name}.",))
    if draw.chance(0.3):
        user = draw.pick(("Tell me a story.", "Write a story.", "I want to hear a story."))
        check = Check("contains", ("Once there was a child called ",))
    return draw.example("talk", user, " ".join(lines), check, reasoning=reasoning)


def talk(draw: Draw) -> Example:
    """Draw an everyday exchange."""
    roll = draw.random.random()
    if roll < 0.35:
        return draw.pick((_story, _poem, _unknown, _unknown))(draw)
    if draw.chance(0.2):
        name = draw.first_name()
        says = (f"My name is {name}.", f"I am {name}.", f"Hi, I'm {name}.", f"Call me {name}.")
        answer = f"Nice to meet you, {name}!"
        reasoning = f"The user is called {name}."
        check = Check("exact", answer)
        return draw.example("talk", draw.pick(says), answer, check, reasoning=reasoning)
    says, answers, reasoning = draw.pick(_EXCHANGES)
    answer = draw.pick(answers)
    system = None
    if draw.chance(0.1):
        name = draw.title()
        system = f"Your name is {name}."
        says, answer = ("Who are you?", "What is your name?"), f"My name is {name}."
        answers, reasoning = (answer,), f"My name is {name}."
    check = Check("one_of", answers)
    return draw.example("talk", draw.pick(says), answer, check, reasoning=reasoning, system=system)
