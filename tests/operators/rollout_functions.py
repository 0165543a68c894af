"""Rollout functions of every kind that people write, for tests that name or run them."""

import functools


async def good(document, generate, threshold=1):
    """One call."""
    answer = await generate({"messages": [{"role": "user", "content": document.text}]})
    return {"text": answer.text, "threshold": threshold}


def sync(document, generate):
    """Not async."""


async def only_document(document):
    """Takes no generate."""


def make_nested():
    """A closure."""

    async def nested(document, generate):
        return make_nested

    return nested


class Holder:
    """A class that holds some."""

    async def method(self, document, generate):
        """Bound to an object."""

    @staticmethod
    async def static(document, generate):
        """Found by its qualified name."""


class CallableObject:
    """An object, not a function."""

    async def __call__(self, document, generate):
        """Call."""


@functools.wraps(good)
async def wrapped(*args, **kwargs):
    """Wrapped by an ordinary decorator."""
    return await good(*args, **kwargs)
