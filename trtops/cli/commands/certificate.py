"""The commands of ``trtops certificate``."""

from trtops.cli import groups
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job, command, op_job


@command(
    Group(
        "run",
        flag("run", "the run of a good engine: a build, an evaluation, a promotion"),
        flag("-o --output FOLDER", "a new folder for the engine and its certificate", required=True, file="writes"),
        flag("--model FILE", "the ONNX model (default: the one that the run kept, or that it was built from)"),
        flag("--days N", "how long the certificate is valid (default: for ever)", convert=float),
        flag("--allow-unproven", "also certify an engine whose data cannot support a verdict; the facts say so"),
        flag("--allow-scripts", "run a data script that the run names"),
    ),
    groups.STORE,
    groups.JSON,
    examples=("trtops certificate write 8d6e3f1a -o resnet",),
)
def write(args: Options) -> Job:
    """Write a run's engine into a new folder, with facts that are signed by the key of TRTOPS_SIGNING_KEY.

    The folder has the OpenSSF Model Signing format: `model_signing verify key` accepts it too.
    """
    options = {"model": args.model, "days": args.days}
    options |= {"allow_unproven": bool(args.allow_unproven), "allow_scripts": bool(args.allow_scripts)}
    return op_job(args, "write_certificate", args.run, args.output, store="reads", **options)


@command(
    Group(
        "folder",
        flag("folder", "a folder of `trtops certificate write`", file="reads"),
        flag("--key FILE+", "public keys; one of them must have signed it", required=True),
    ),
    groups.STORE,
    groups.JSON,
    examples=("trtops certificate verify resnet --key key.pub",),
)
def verify(args: Options) -> Job:
    """Verify a certified engine: signature, files and expiry; with --store also its run. The engine is not loaded.

    Exits with 1 if one of them is wrong.
    """
    return op_job(args, "verify_certificate", args.folder, tuple(args.key), store="reads" if args.store else "none")
