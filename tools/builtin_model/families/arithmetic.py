"""Arithmetic digit by digit, in the words of the model's reasoning."""

_COLUMNS = ("ones", "tens", "hundreds", "thousands", "more")


def _digits(number: int) -> list[int]:
    return [int(digit) for digit in reversed(str(number))]


def added(first: int, second: int) -> str:
    """Return the working of first + second, column by column from the right."""
    head = f"{first}+{second}"
    if first < 10 and second < 10:
        return f"{head}={first + second}."
    a, b = _digits(first), _digits(second)
    steps, carry = [], 0
    for index in range(max(len(a), len(b))):
        x = a[index] if index < len(a) else 0
        y = b[index] if index < len(b) else 0
        total = x + y + carry
        term = f"{x}+{y}+{carry}" if carry else f"{x}+{y}"
        steps.append(f"{_COLUMNS[index]} {term}={total}")
        carry = total // 10
    return f"{head}: {', '.join(steps)}. {head}={first + second}."


def subtracted(first: int, second: int) -> str:
    """Return the working of first - second (not negative), column by column from the right."""
    head = f"{first}-{second}"
    if first < 19 and second < 10:
        return f"{head}={first - second}."
    a, b = _digits(first), _digits(second)
    steps, borrow = [], 0
    for index in range(len(a)):
        y = b[index] if index < len(b) else 0
        term = f"-{y}-{borrow}" if borrow else f"-{y}"
        rest = a[index] - y - borrow
        borrow = int(rest < 0)
        x = a[index] + 10 * borrow
        steps.append(f"{_COLUMNS[index]} {x}{term}={rest + 10 * borrow}")
    return f"{head}: {', '.join(steps)}. {head}={first - second}."


def multiplied(first: int, second: int) -> str:
    """Return the working of first * second for a second factor of one digit, or factors up to twelve."""
    head = f"{first}*{second}"
    if first <= 12 and second <= 12:
        return f"{head}={first * second}."
    steps, carry = [], 0
    for index, digit in enumerate(_digits(first)):
        product = digit * second
        total = product + carry
        step = f"{_COLUMNS[index]} {digit}*{second}={product}"
        steps.append(f"{step}, {product}+{carry}={total}" if carry else step)
        carry = total // 10
    return f"{head}: {', '.join(steps)}. {head}={first * second}."


def multiplied_long(first: int, second: int) -> str:
    """Return the working of first * second for a second factor of two digits, by its tens and its ones."""
    tens, ones = divmod(second, 10)
    lines = [multiplied(first, tens), f"{first}*{tens}0={first * tens * 10}."]
    if ones:
        lines += [multiplied(first, ones), added(first * tens * 10, first * ones)]
    lines.append(f"{first}*{second}={first * second}.")
    return " ".join(lines)


def divided(first: int, second: int) -> str:
    """Return the working of first / second for a whole quotient and a divisor of one digit, from the left."""
    quotient = first // second
    head = f"{first}/{second}"
    if quotient <= 12:
        return f"{second}*{quotient}={first}, so {head}={quotient}."
    steps, rest = [], 0
    for digit in str(first):
        part = rest * 10 + int(digit)
        rest = part % second
        steps.append(f"{part}/{second}={part // second} rest {rest}")
    return f"{head}: {', '.join(steps)}. {head}={quotient}."
