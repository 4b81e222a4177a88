"""Very small programs: one well-known function, with a name that may be given."""

from builtin_model.families.draw import Draw
from builtin_model.families.example import Check, Example

_FUNCTIONS = (
    ("adds two numbers", "add", "a, b", "return a + b"),
    ("subtracts two numbers", "subtract", "a, b", "return a - b"),
    ("multiplies two numbers", "multiply", "a, b", "return a * b"),
    ("divides two numbers", "divide", "a, b", "return a / b"),
    ("returns the larger of two numbers", "larger", "a, b", "return max(a, b)"),
    ("returns the smaller of two numbers", "smaller", "a, b", "return min(a, b)"),
    ("squares a number", "square", "x", "return x * x"),
    ("doubles a number", "double", "x", "return 2 * x"),
    ("checks whether a number is even", "is_even", "x", "return x % 2 == 0"),
    ("checks whether a number is odd", "is_odd", "x", "return x % 2 == 1"),
    ("reverses a string", "reverse", "text", "return text[::-1]"),
    ("counts the words of a text", "count_words", "text", "return len(text.split())"),
    ("returns the length of a list", "length", "items", "return len(items)"),
    ("sums a list", "total", "items", "return sum(items)"),
    ("sorts a list", "sort", "items", "return sorted(items)"),
    ("returns the first item of a list", "first", "items", "return items[0]"),
    ("returns the last item of a list", "last", "items", "return items[-1]"),
    ("greets a person", "greet", "name", 'return f"Hello, {name}!"'),
    ("prints a text", "show", "text", "print(text)"),
)


def code(draw: Draw) -> Example:
    """Draw a request for a Python function of two lines."""
    does, name, parameters, body = draw.pick(_FUNCTIONS)
    request = draw.pick(
        (
            f"Write a Python function that {does}",
            f"Give me a function in Python that {does}",
            f"I need a Python function that {does}",
            f"Python function that {does}",
        )
    )
    if draw.chance(0.4):
        name = draw.plain_word()
        request += draw.pick((f" and is called {name}", f". Call it {name}", f", named {name}"))
    answer = f"def {name}({parameters}):\n    {body}"
    fenced = draw.chance(0.3)
    if fenced:
        request += ". Use a markdown code block"
        answer = f"```python\n{answer}\n```"
    reasoning = f"The function {name} {does}."
    check = Check("exact", answer)
    return draw.example("code", draw.polite(request + "."), answer, check, reasoning=reasoning)
