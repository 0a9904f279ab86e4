"""The one exception type for bad input."""


class UserError(ValueError):
    """Bad input. The message says what was expected, what was found and what to change.

    The command line prints the message without a traceback and exits with code 2.
    """
