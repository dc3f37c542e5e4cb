"""Tools of the skill calendar_sums."""

from datetime import date, timedelta


def weekday(day: str) -> str:
    """Return the name of a date's weekday, such as Monday."""
    return date.fromisoformat(day).strftime("%A")


def days_between(start: str, end: str) -> int:
    """Return how many days it is from one date to another; below 0 where the second is earlier."""
    return (date.fromisoformat(end) - date.fromisoformat(start)).days


def add_days(day: str, days: int) -> str:
    """Return the date so many days later, or earlier for a number below 0."""
    return (date.fromisoformat(day) + timedelta(days=days)).isoformat()


def working_days(start: str, end: str) -> int:
    """Return how many days from Monday to Friday there are, the first included, the last not."""
    first, count = date.fromisoformat(start), days_between(start, end)
    return sum((first + timedelta(days=number)).weekday() < 5 for number in range(count))
