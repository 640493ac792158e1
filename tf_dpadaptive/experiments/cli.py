"""The command line that the binaries share."""

import contextlib
import datetime
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence

import ml_collections
from absl import app, flags
from ml_collections import config_flags

import tf_dpadaptive
from tf_dpadaptive.data import tasks
from tf_dpadaptive.experiments import (
    noise_choice,
    report,
    runner,
    sections,
)


def train(name: str) -> None:
    """Parses the flags, trains, and prints accuracy and privacy statement.

    Flags: `--config=FILE[:OPTIMIZER]`, overrides `--config.<path>=value`,
    `--workdir=DIR`. Without flags, the config `name` runs into a new folder.
    FILE may be the name of one of the project's configs.

    Args:
        name: The config that is the default.
    """

    def work(config: ml_collections.ConfigDict, folder: pathlib.Path) -> None:
        report.say(report.summary(runner.run(config, folder)))
        report.say(f"Report, picture and model: {folder}")

    _run(name, "The experiment, [:OPTIMIZER].", work)


def calibrate(name: str) -> None:
    """Parses the flags; prints a statement and the noise to choose from.

    Flags as for `train`; a config of a training works too if it is told how
    many examples there are: `--config.data.num_train=N`.

    Args:
        name: The config that is the default.
    """

    def work(config: ml_collections.ConfigDict, folder: pathlib.Path) -> None:
        report.say(noise_choice.summary(noise_choice.run(config, folder)))
        report.say(f"Report and picture: {folder}")

    _run(name, "The plan.", work)


def _run(
    name: str,
    meaning: str,
    work: Callable[[ml_collections.ConfigDict, pathlib.Path], None],
) -> None:
    default = str(config_path(name))
    try:
        argv = [_found(argument) for argument in sys.argv]
    except FileNotFoundError as error:
        sys.exit(str(error))
    with _fields_named(argv, default):
        config = config_flags.DEFINE_config_file(
            "config", default, meaning, sys_argv=argv
        )
    workdir = flags.DEFINE_string(
        "workdir", None, "Folder for the results. Default: a new one in runs/."
    )

    _show_help_of(("config", "workdir"), config_path(name))

    def main(argv: Sequence[str]) -> None:
        if len(argv) > 1:
            raise app.UsageError(f"Unknown arguments: {argv[1:]}.")
        _clear_rival(config.value)
        now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        folder = pathlib.Path(workdir.value or f"runs/{name}-{now}")
        try:
            work(config.value, folder)
        except (tasks.DataUnavailableError, FloatingPointError) as error:
            sys.exit(f"{type(error).__name__}: {error}")

    def parsed(argv: Sequence[str]) -> list[str]:
        with _fields_named(argv, default):
            return app.parse_flags_with_usage(list(argv))

    app.run(main, argv=argv, flags_parser=parsed)


def _found(argument: str) -> str:
    """Takes configs of the project by name, wherever they are installed."""
    flag, _, value = argument.partition("=")
    file, colon, rest = value.partition(":")
    name = file.removeprefix("configs/").removesuffix(".py")
    ours = flag.lstrip("-") == "config" and name.isidentifier()
    if not ours or pathlib.Path(file).exists():
        return argument
    return f"{flag}={config_path(name)}{colon}{rest}"


@contextlib.contextmanager
def _fields_named(argv: Sequence[str], default: str) -> Iterator[None]:
    """Says which fields there are where one that is not was to be set."""
    try:
        yield
    except (AttributeError, KeyError):
        given = [x.partition("=") for x in argv if x.startswith("--config")]
        files = [value for flag, _, value in given if flag == "--config"]
        parser = config_flags.config_flags.ConfigFileFlagParser("config")
        root = parser.parse(files[-1] if files else default)
        for flag, _, _ in given:
            node = root
            for key in flag.split(".")[1:]:
                if key not in node:
                    fields = ", ".join(sorted(node))
                    sys.exit(f"{flag}: no field {key!r}. There are: {fields}.")
                node = node[key]
        raise


def _clear_rival(config: ml_collections.ConfigDict) -> None:
    """Lets --config.privacy.noise_multiplier take the place of ε, and back."""
    given = config_flags.get_override_values(flags.FLAGS["config"])
    pair = ("privacy.epsilon", "privacy.noise_multiplier")
    if (pair[0] in given) == (pair[1] in given):
        return
    rival = pair[1] if pair[0] in given else pair[0]
    config.privacy[rival.partition(".")[2]] = None


def _show_help_of(names: Sequence[str], config: pathlib.Path) -> None:
    """Makes `--help` show these flags; absl shows those of the script alone."""
    for name in names:
        flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[name])
    sys.modules["__main__"].__doc__ = (
        f"{pathlib.Path(sys.argv[0]).name} --config=FILE --workdir=DIR "
        "--config.FIELD=VALUE ...\n\nFields, with what they mean, are those "
        f"of the config, by default {config}, and its sections are described "
        f"in {sections.__file__}."
    )


def config_path(name: str) -> pathlib.Path:
    """Returns where a config of the project lies.

    Args:
        name: Its file's name without `.py`.

    Returns:
        The path: inside the installed package, or beside it in a clone.
    """
    package = pathlib.Path(tf_dpadaptive.__file__).parent
    for folder in (package / "configs", package.parent / "configs"):
        if (folder / f"{name}.py").exists():
            return folder / f"{name}.py"
    raise FileNotFoundError(
        f"There is no config {name!r} in {package / 'configs'} or "
        f"{package.parent / 'configs'}. Name one with --config=FILE."
    )
