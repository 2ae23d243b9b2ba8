"""Options that a flag, an environment variable or the configuration file can set, in this order.

A variable is ``ZMQPS_<COMMAND>_<OPTION>`` or, for every command that has the option,
``ZMQPS_<OPTION>``; the more specific one wins. In the file a table ``[command]`` and the top level
do the same. One option has the name of a command, ``coordinator``, and TOML knows no key that is a table and a string:
at the top of a file it is ``coordinator-endpoint``.
"""

from __future__ import annotations

import datetime
import difflib
import math
import re
import reprlib
import tomllib
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from zmqps.errors import ConfigurationError, UnsafeFileError
from zmqps.files import TEXT_NBYTES, open_given, read_file
from zmqps.settings import kinds
from zmqps.settings.cluster import UpSettings
from zmqps.settings.fields import Option, Settings, build, options
from zmqps.settings.kinds import Kind, Names, Switch, nbytes_of, size_text
from zmqps.settings.server import ServerSettings

F = TypeVar("F", bound=Callable[..., Any])

#: What a file may hold in the place of a value.
PLAIN = (bool, int, float, str, list, dict, datetime.date, datetime.time)
#: The name at the top of a file of the option that has the name of a command, and so of a table.
ENDPOINT_KEY, ENDPOINT_OPTION = "coordinator-endpoint", "coordinator"


class Setting(click.Option):
    """An option of a command.

    Parameters
    ----------
    shared
        Whether it means the same for every command that has it, so that ``ZMQPS_<OPTION>`` and the
        top level of the file may set it. An address to bind is not: two nodes cannot have one.
    example
        A value for the example file, where there is no default.
    see
        The page of the documents, and the section there, that say more.
    """

    def __init__(
        self, *args: Any, shared: bool = True, example: str | int | None = None, see: str = "", **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.shared = shared
        self.example = example
        self.see = see
        self.show_envvar = False

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return the value of the command's variable, else of the shared one."""
        specific = super().resolve_envvar_value(ctx)
        if specific is not None or not self.shared or self.name is None or not self.allow_from_autoenv:
            return specific
        self.envvar = f"ZMQPS_{self.name.upper()}"
        try:
            return super().resolve_envvar_value(ctx)
        finally:
            self.envvar = None

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """Return the value in the option's type; what a file holds is converted from no other type than its own."""
        kinds, takes = self._takes()
        if self.multiple and isinstance(value, str):
            value = [value]
        for one in value if self.multiple and isinstance(value, list | tuple) else [value]:
            if isinstance(one, PLAIN) and (not isinstance(one, kinds) or (isinstance(one, bool) and not self.is_flag)):
                self._refuse(ctx, one, takes)
            if isinstance(one, str) and "\0" in one:
                self._refuse(ctx, one, takes)
        try:
            plain = super().type_cast_value(ctx, value)
        except (TypeError, ValueError, OverflowError):
            self._refuse(ctx, value, takes)
        if isinstance(plain, float) and not math.isfinite(plain):
            self._refuse(ctx, value, takes)
        return plain

    def _takes(self) -> tuple[tuple[type, ...], str]:
        if self.is_flag:
            return (bool, str), "true or false"
        if isinstance(self.type, Size):
            return (int, str), "a size, such as 1048576, 512KiB or 1MiB"
        if isinstance(self.type, click.types.IntParamType):
            return (int, str), "a whole number"
        if isinstance(self.type, click.types.FloatParamType):
            return (int, float, str), "a finite number"
        return (str,), "a string"

    def _refuse(self, ctx: click.Context, value: object, takes: str) -> NoReturn:
        try:
            given = reprlib.repr(value)
        except ValueError:  # Python writes no int of more than 4300 digits
            given = "a number of thousands of digits"
        raise click.BadParameter(f"{given} is not {takes}", ctx, self)


def setting(*names: str, **kwargs: Any) -> Callable[[F], F]:
    """Declare a `Setting`; its default is shown in the help."""
    return click.option(*names, cls=Setting, **{"show_default": True, **kwargs})


class Size(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions of click
    """A number of bytes: 1048576, 512KiB, 1MiB, 8GB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number of bytes."""
        nbytes = nbytes_of(str(value))
        if isinstance(nbytes, str):
            self.fail(f"{value!r} is not a size; write 1048576, 512KiB or 1MiB", param, ctx)
        return int(nbytes)


# --- options of a struct ------------------------------------------------------------------------


def options_of(struct: type[Settings]) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command the options of a struct; it is called with the struct as its first argument."""

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        names = {option.name for option in options(struct)}

        @wraps(command)
        def called(**told: Any) -> int:
            settings = build(struct, {name: told.pop(name) for name in names})
            return command(settings, **told)

        for option in reversed(_distinct(struct)):
            _declared(option)(called)
        return called

    return decorate


def option_of(struct: type[Settings], name: str, **but: Any) -> Callable[[F], F]:
    """Declare one option of a struct, for a command without the others; ``but`` is what is said otherwise of it."""
    found = next(option for option in _distinct(struct) if option.name == name)
    return _declared(replace(found, setting=replace(found.setting, **but)))


def flags_of(settings: Settings) -> list[str]:
    """Return the flags by which a person would say these settings, as far as they are not the defaults."""
    flags = []
    for option in options(type(settings)):
        value: Any = settings
        for name in option.path:
            value = getattr(value, name)
        if value == option.default:
            continue
        flag, kind = f"--{option.name.replace('_', '-')}", option.setting.kind
        value = kind.placed(value)
        if isinstance(kind, Switch):
            flags.append(flag if value else f"--no-{flag[2:]}")
        elif isinstance(kind, Names):
            flags += [f"{flag}={name}={there}" for name, there in value.items()]
        elif kind.several:
            flags += [f"{flag}={one}" for one in value]
        else:
            flags.append(f"{flag}={size_text(value) if isinstance(kind, kinds.Size) else value}")
    return flags


def _distinct(struct: type[Settings]) -> list[Option]:
    """Return the options of a struct, each once: as the struct itself declares it, or the first that it holds."""
    found: dict[str, Option] = {}
    for option in options(struct):
        if option.name not in found or len(option.path) < len(found[option.name].path):
            found[option.name] = option
    return list(found.values())


def _declared(option: Option) -> Callable[[F], F]:
    """Return what gives a command an option, as click has it."""
    said, kind = option.setting, option.setting.kind
    flag = f"--{option.name.replace('_', '-')}"
    facts: dict[str, Any] = {"shared": said.shared, "help": said.help, "metavar": said.metavar or None}
    facts["show_default"] = said.shown or True
    if isinstance(kind, Switch):
        name = f"{flag}/--no-{flag[2:]}" if option.default else flag
        facts |= {"is_flag": True, "default": option.default}
    else:
        name = flag
        facts |= {"type": _click_type(kind), "multiple": kind.several}
        if option.default not in (None, "", (), {}):
            facts["default"] = size_text(option.default) if isinstance(kind, kinds.Size) else option.default
        if said.alone:
            facts |= {"is_flag": False, "flag_value": said.alone}
    names = [name, *([f"-{said.short}"] if said.short else []), option.name]
    return setting(*names, example=said.example, see=said.see, **facts)


def _click_type(kind: Kind) -> click.ParamType | type | None:  # type: ignore[type-arg]  # generic only in newer click
    if isinstance(kind, kinds.Whole):
        return click.IntRange(kind.at_least, kind.at_most)
    if isinstance(kind, kinds.Seconds):
        least = kind.at_least if kind.above is None else kind.above
        return click.FloatRange(least, min_open=kind.above is not None)
    if isinstance(kind, kinds.Size):
        return Size()
    if isinstance(kind, kinds.Choice):
        return click.Choice(kind.words)
    if isinstance(kind, kinds.File):
        return click.Path(
            exists=kind.exists, file_okay=not kind.is_directory, dir_okay=kind.is_directory, path_type=Path
        )
    return None


#: Options of several commands besides those that start a node.
job_secret = option_of(ServerSettings, "job_secret")
directory = option_of(UpSettings, "directory")
parent_fd = click.option("--parent-fd", type=int, hidden=True, allow_from_autoenv=False)


# --- the file ---------------------------------------------------------------------------------


def read_config(path: Path, group: click.Group) -> dict[str, Any]:
    """Return a configuration file as click's ``default_map``.

    Raises
    ------
    ConfigurationError
        The file cannot be read, or contains a key that no command knows.
    """
    try:
        text = read_file(path, TEXT_NBYTES, open_given).decode()
        entries = tomllib.loads(text)
    except UnsafeFileError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, tomllib.TOMLDecodeError) and _collides(text):
            raise ConfigurationError(
                f"{path}: TOML takes coordinator = … at the top and the table [coordinator] for the same key; "
                f'write {ENDPOINT_KEY} = "tcp://HOST:PORT" at the top'
            ) from None
        raise ConfigurationError(f"cannot read {path}: {error}") from None
    options = {name: _options(command) for name, command in group.commands.items()}
    shared = {name for settings in options.values() for name, setting in settings.items() if setting.shared}
    defaults: dict[str, dict[str, Any]] = {name: {} for name in options}
    for key, value in entries.items():
        name = ENDPOINT_OPTION if key.replace("_", "-") == ENDPOINT_KEY else key.replace("-", "_")
        if not isinstance(value, dict):
            if name not in shared:
                known = [command for command, settings in options.items() if name in settings]
                raise _unknown(path, key, shared, f"; it belongs in [{'] or ['.join(known)}]" if known else "")
            for command, settings in options.items():
                if name in settings:
                    defaults[command].setdefault(name, value)
            continue
        if key not in options:
            raise _unknown(path, key, set(options))
        for inner, inner_value in value.items():
            inner_name = inner.replace("-", "_")
            if inner_name not in options[key] or isinstance(inner_value, dict):
                raise _unknown(path, f"{key}.{inner}", set(options[key]))
            defaults[key][inner_name] = inner_value
    return defaults


def _collides(text: str) -> bool:
    """Whether a file names the coordinator's endpoint as if that were not the name of a table."""
    at_top = re.split(r"^[ \t]*\[", text, maxsplit=1, flags=re.MULTILINE)[0]
    return bool(
        re.search(r"^[ \t]*coordinator[ \t]*=", at_top, re.MULTILINE)
        and re.search(r"^[ \t]*\[[ \t]*coordinator[ \t]*\]", text, re.MULTILINE)
    )


def _options(command: click.Command) -> dict[str, Setting]:
    return {param.name: param for param in command.params if isinstance(param, Setting) and param.name}


def _unknown(path: Path, key: str, known: set[str], hint: str = "") -> ConfigurationError:
    close = difflib.get_close_matches(key.rpartition(".")[2].replace("-", "_"), sorted(known), n=1)
    hint = hint or (f"; did you mean {close[0].replace('_', '-')!r}?" if close else "")
    return ConfigurationError(f"{path}: unknown key {key!r}{hint}")
