"""Errors that come from what the user gave us: one line that says what, where and what to do."""


class BgadError(Exception):
    """Base of every error caused by input, data, options or the machine; the CLI prints it and exits with 2."""


class ImageError(BgadError):
    """An image cannot be read or has a form that we do not take."""


class DataError(BgadError):
    """A data set, its masks or its split do not fit together."""


class ConfigError(BgadError):
    """An option or a configuration key is unknown or out of range."""


class ModelError(BgadError):
    """A model folder or a backbone cannot be used."""


class OutputError(BgadError):
    """Results cannot be written where they should go."""


def first_line(error: BaseException, limit: int = 160) -> str:
    """The first line of an error's message, cut to `limit` characters; its class name if the message is empty."""
    text = str(error).strip()
    return text.splitlines()[0][:limit] if text else type(error).__name__
