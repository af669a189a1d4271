"""The commands of the workbench: serve, token and update."""

from __future__ import annotations

import argparse
import re
import socket
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bgad.cli import console
from bgad.cli.options import add_command, add_model, number
from bgad.errors import ConfigError, DataError

if TYPE_CHECKING:
    from bgad.service.store.store import Store

DEMO = Path("bgad-demo")
PORT = 8765
GRACE = 5  # seconds for requests to end when the service is stopped


def add_serve(commands: Any) -> None:
    """Register the command."""
    parser = add_command(
        commands,
        "serve",
        _serve,
        "Start the workbench: score, review, teach, compare and release, in a browser and over HTTP.",
        "It listens on this machine only. Beyond that, everyone needs a token: make one with `bgad token`, then start\n"
        "with --host 0.0.0.0, behind a proxy that adds TLS.\n\n"
        "examples:\n  bgad serve                          (after `make demo`)\n  bgad serve --models /srv/models\n"
        "  bgad serve --models /srv/models --store postgresql://bgad@db/bgad\n"
        "  curl --data-binary @part.png 'localhost:8765/v1/models/gear/score?filename=part.png'",
    )
    _add_models(parser)
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="the data sets of the models, by name, for teaching (MODELS/data)"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    parser.add_argument("--port", type=number(int, 0, 65536), default=PORT, help=f"(default {PORT})")
    parser.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="HOST",
        help="a name under which browsers reach the service by way of a proxy on this machine; may be repeated",
    )
    group = parser.add_argument_group("limits")
    group.add_argument(
        "--max-mb", type=number(float, 0.001), default=64, metavar="MB", help="of a picture that is sent (default 64)"
    )
    group.add_argument(
        "--max-megapixels", type=number(float, 0.001), default=50, metavar="N", help="of such a picture (default 50)"
    )
    group.add_argument(
        "--loaded",
        type=number(int, 1),
        default=16,
        metavar="N",
        help="released models in memory; of more, the one that was not used for longest is put away (default 16)",
    )
    group.add_argument(
        "--keep-days",
        type=number(float, 0.01),
        metavar="N",
        help="drop the pictures that nobody reviewed in so many days; their scores stay (default: keep all)",
    )
    group.add_argument(
        "--job-minutes", type=number(float, 0.01), default=120, metavar="N", help="that a teaching may take (120)"
    )
    group.add_argument(
        "--job-memory", type=number(float, 0.1), default=12, metavar="GB", help="memory of a teaching (12)"
    )


def _add_models(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--models",
        type=Path,
        metavar="DIR",
        help="folder with model folders (default: this one, or ./bgad-demo where it has none)",
    )
    parser.add_argument(
        "--store", metavar="URL", help="postgresql://user@host/name in place of an SQLite file beside the models"
    )


def _models(arguments: argparse.Namespace) -> Path:
    given: Path | None = arguments.models
    if given is None:
        given = next((place for place in (Path(), DEMO) if any(place.glob("*.bgad"))), None)
        if given is None:
            raise DataError("no model folder (NAME.bgad) here: give --models DIR, or run `bgad demo` first")
    if not given.is_dir():
        raise DataError(f"{given}: no such folder of models")
    return given


def _address(arguments: argparse.Namespace, models: Path) -> str:
    """Of the store."""
    from bgad.service.workbench import FOLDER

    if arguments.store:
        return str(arguments.store)
    (models / FOLDER).mkdir(exist_ok=True)
    return f"sqlite:///{(models / FOLDER / 'store.sqlite').absolute()}"


def _serve(arguments: argparse.Namespace) -> int:
    try:
        import uvicorn  # noqa: F401 - to say what is missing before anything is done

        from bgad.service.store import instance_lock
        from bgad.service.store.store import Store
        from bgad.service.workbench import FOLDER
    except ImportError as error:
        raise ConfigError(f"the workbench needs {error.name}: pip install 'bgad[serve]'") from error
    from bgad.io import files as output_files

    models = _models(arguments)
    if not (models / FOLDER).exists() and not any(models.glob("*.bgad")):
        raise DataError(f"{models}: no model that could be read; put NAME.bgad folders there")
    with output_files.locked(models / FOLDER, "service", "--models"):
        address = _address(arguments, models)
        with instance_lock.claimed(address), closing(Store(address)) as store:
            _run(arguments, models, store, address)
    console.say(f"stopped; everything is in {models / FOLDER}")
    return 0


def _run(arguments: argparse.Namespace, models: Path, store: Store, address: str) -> None:
    """Until it is stopped."""
    import uvicorn

    from bgad.service import demo_seed
    from bgad.service.http import app
    from bgad.service.http import tokens as auth
    from bgad.service.store import dialects
    from bgad.service.teaching.runner import Jobs, Limits
    from bgad.service.workbench import Workbench

    names = tuple(_host_name(name) for name in arguments.name)
    with dialects.opening(address):
        tokens = bool(store.tokens())
        open_as = next((name for name in (arguments.host, *names) if not auth.is_local(name)), None)
        if open_as is not None and not tokens:
            raise ConfigError(
                f"{open_as} can be reached from other machines, and no token guards it: make one first with "
                f"`bgad token add NAME --role admin --models {models}`"
            )
        bench = Workbench(
            models,
            store,
            data=arguments.data,
            max_bytes=int(arguments.max_mb * 2**20),
            max_pixels=int(arguments.max_megapixels * 1e6),
            loaded=arguments.loaded,
            keep_days=arguments.keep_days,
        )
        found = bench.names()
    if not found:
        raise DataError(f"{models}: no model that could be read; put NAME.bgad folders there")
    jobs = Jobs(bench, Limits(arguments.job_minutes, arguments.job_memory))
    local = auth.is_local(arguments.host)
    hosts = (*app.LOCAL_NAMES, *names) if local else ()  # an address that others reach has any name
    service = app.create(bench, jobs, hosts=hosts, tokens=tokens)
    listening = _listen(arguments.host, arguments.port)
    port = listening.getsockname()[1]
    if arguments.data is None:
        demo_seed.own_test_images(bench)
    shown = "localhost" if local else arguments.host
    console.say(f"{len(found)} models from {models}: {', '.join(found)}")
    console.say(f"open http://{shown}:{port} (stop with Ctrl-C)")
    config = uvicorn.Config(
        service, log_level="warning", server_header=False, proxy_headers=False, timeout_graceful_shutdown=GRACE
    )
    with listening, suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listening])


def _host_name(given: str) -> str:
    if not re.fullmatch(r"[\w.-]+", given):
        raise ConfigError(f"{given!r} is no name of a host: give it without https:// and without a port")
    return given.lower()


def _listen(host: str, port: int) -> socket.socket:
    """A socket there; ConfigError where that is not possible."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"{host} is no address to listen on: {error.strerror or error}") from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        listening.close()
        reason = error.strerror or error
        raise ConfigError(f"cannot listen on port {port} of {host} ({reason}): give another --port") from error
    return listening


def add_token(commands: Any) -> None:
    """Register the command."""
    parser = add_command(
        commands,
        "token",
        _token,
        "Make, list or take away the tokens of the workbench.",
        "Roles: score (send pictures), review (also look and say what they show), admin (also teach and release).\n"
        "A token is shown once; the store keeps its hash only.\n\n"
        "examples:\n  bgad token add camera-3 --role score\n  bgad token list\n  bgad token drop camera-3",
    )
    parser.add_argument("what", choices=("add", "list", "drop"))
    parser.add_argument("name", nargs="?", metavar="NAME", help="whose token it is")
    parser.add_argument("--role", choices=("score", "review", "admin"), default="score", help="(default: score)")
    _add_models(parser)


def _token(arguments: argparse.Namespace) -> int:
    from bgad.service.store import dialects
    from bgad.service.store.store import Store

    address = _address(arguments, _models(arguments))
    with closing(Store(address)) as store, dialects.opening(address):
        return _change_tokens(arguments, store)


def _change_tokens(arguments: argparse.Namespace, store: Store) -> int:
    from bgad.service.http import tokens as auth

    if arguments.what == "list":
        for row in store.tokens():
            print(f"{row['role']:7s} {console.printable(row['name'])}")  # noqa: T201
        return 0
    if not arguments.name:
        raise ConfigError(f"whose token is to be {'made' if arguments.what == 'add' else 'dropped'}? Give a NAME")
    if arguments.what == "drop":
        if not store.drop_token(arguments.name):
            raise ConfigError(f"{arguments.name!r} has no token; `bgad token list` shows who has")
        console.say(f"{arguments.name} has no token any more")
        return 0
    print(auth.new_token(store, arguments.name, arguments.role))  # noqa: T201
    console.say(f"the token of {arguments.name} ({arguments.role}); it is not shown again")
    return 0


def add_update(commands: Any) -> None:
    """Register the command."""
    parser = add_command(
        commands,
        "update",
        _update,
        "Teach a model new good parts and new defects, from where it is. Takes a fraction of a training.",
        "The flows go on from those of the model, over what they have learnt before and what is new; so the pictures\n"
        "of the training must still be there (--data, if they have moved). The threshold is calibrated anew.\n\n"
        "examples:\n  bgad update gear.bgad --bad misses/ --masks misses-masks/\n"
        "  bgad update gear.bgad --good false-alarms/ --bad misses/ --out gear-2.bgad",
    )
    add_model(parser)
    parser.add_argument("--good", nargs="+", default=[], metavar="PATH", help="new good parts")
    parser.add_argument("--bad", nargs="+", default=[], metavar="PATH", help="new bad ones")
    parser.add_argument(
        "--masks", type=Path, metavar="DIR", help="where the defects of --bad are: a file of the same path or name each"
    )
    parser.add_argument(
        "--ignore",
        type=Path,
        metavar="DIR",
        help="what not to learn of --good and --bad (all that is not black): a file of the same path or name each",
    )
    parser.add_argument(
        "--data", type=Path, metavar="DATA", help="the folder, manifest or data set of the training, if it has moved"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="(default: MODEL-taught.bgad)")
    parser.add_argument(
        "--false-reject-rate",
        type=float,
        metavar="RATE",
        help="share of good parts that may be rejected (default: the model's, or the smallest that the data supports)",
    )
    parser.add_argument("--overwrite", action="store_true", help="write over a model that is there")
    parser.add_argument("--resume", action="store_true", help="go on with a run that was stopped")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, mps")


def _update(arguments: argparse.Namespace) -> int:
    from bgad.cli.interrupt import stop_on_interrupt
    from bgad.training.update import new_images, update

    new = new_images(arguments.good, arguments.bad, arguments.masks, arguments.ignore)
    with console.progress() as progress, stop_on_interrupt() as stop:
        update(
            arguments.model,
            new,
            arguments.out,
            data=arguments.data,
            false_reject_rate=arguments.false_reject_rate,
            device=arguments.device,
            resume=arguments.resume,
            overwrite=arguments.overwrite,
            progress=progress,
            stop=stop,
        )
    return 0
