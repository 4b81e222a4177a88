"""Word problems of one to three steps, with the working before the answer."""

from builtin_model.families.draw import Draw
from builtin_model.families.example import Check, Example
from builtin_model.families.stories import STORIES

_WITHOUT_THINKING = (" Show your work.", " Work it out.", " Explain.", "", " Think step by step.")


def problems(draw: Draw) -> Example:
    """Draw a word problem or a longer sum, mostly with reasoning before the answer."""
    problem = draw.pick(STORIES)(draw)
    check = Check("number", problem.result)
    if draw.chance(0.25):
        text = problem.text + draw.pick(_WITHOUT_THINKING)
        answer = f"{problem.working}\nThe answer is {problem.result}."
        return draw.example("problems", text, answer, check, reasoning="", thinking=0)
    answer = str(problem.result) if draw.chance(0.5) else problem.sentence
    text = problem.text
    if answer == problem.sentence:
        text += draw.pick((" Answer in a sentence.", " Give the answer as a sentence."))
    elif draw.chance(0.3):
        text += draw.pick((" Answer with the number only.", " Just the number.", " Number only."))
    return draw.example("problems", text, answer, check, reasoning=problem.working, thinking=1.0)
