"""Command-line flags of a preparation."""

from __future__ import annotations

import os
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path

from ds_hymotion.arguments import flag
from ds_hymotion.data.actions.settings import AUTO, MODES, ActionSettings
from ds_hymotion.data.preparation import Preparation
from ds_hymotion.errors import UserError
from ds_hymotion.formats.amass import OUTLIER_SPEED
from ds_hymotion.motion.representation import REPRESENTATIONS
from ds_hymotion.text.encoders import ENCODERS
from ds_hymotion.text.flags import EncoderFlags
from ds_hymotion.text.sources import PRECISIONS


@dataclass
class PrepareArguments(EncoderFlags):
    """Flags of launch/prepare.py."""

    data_dir: str = flag("", "folder with motion .npz files (AMASS: SMPL-H, SMPL-X or SMPL), at any depth")
    out: str = flag("", "folder of the prepared corpus; must not exist, or be the one to go on with")
    texts: str | None = flag(
        None,
        "folder of captions: NNNNNN.txt of HumanML3D with --index, else one .txt per motion, by its path or name; "
        "without it, captions lie beside the motions (walk.txt beside walk.npz), one a line",
    )
    index: str | None = flag(
        None,
        "HumanML3D's index.csv: which part of which recording is a clip; --texts is by default texts/ beside it",
    )
    annotations: str | None = flag(
        None, "JSON of captions with paths and seconds, as KIT-ML and TMR have them, instead of --texts and --index"
    )
    babel: list[str] = field(
        default_factory=list,
        metadata={"help": "JSON files of BABEL's action labels; they become hints for sorting motions by action"},
    )
    exclude: str | None = flag(None, "text file of clips or motion files to leave out, an id or a path a line")
    check_against: str | None = flag(
        None,
        "a latest.ckpt whose mean and std the corpus must fit (hymotion-201 only); without --data_dir, the finished "
        "corpus at --out is checked",
    )
    representation: str = flag("smpl24-rotmat", f"what a frame's channels are: {' or '.join(REPRESENTATIONS)}")
    positions_relative_to: str | None = flag(
        None, "hymotion-201 only: what joint positions count from, pelvis (the default) or rest_root"
    )
    fps: float = flag(30.0, "frames per second of the corpus; motions are resampled by time")
    min_frames: int = flag(2, "shorter clips are left out, in frames at --fps")
    max_frames: int | None = flag(
        None, "longer clips are treated by --long_clips, in frames at --fps; default: any length"
    )
    long_clips: str = flag("crop", "what happens to clips longer than --max_frames: crop, split or drop")
    mirror: bool = flag(False, "add a mirrored copy of every clip, with left and right exchanged in its captions")
    unconditional: bool = flag(False, "keep motions without captions, with the empty caption")
    split: list[float] | None = flag(
        None,
        "shares of train, val and test, 0.9 0.05 0.05 unless given; whole recordings are assigned, by a hash of "
        "their name",
    )
    split_lists: str | None = flag(
        None, "folder with train.txt, val.txt and test.txt that name the clips; not with --split"
    )
    seed: int = flag(0, "seed of the assignment to splits, and of sorting into action types")
    actions_file: str | None = flag(None, 'JSON of action types by clip name, such as {"000001": "LOCOMOTION"}')
    rates: list[str] = field(
        default_factory=list,
        metadata={"help": "frame rates of folders whose files state wrong ones, such as CMU=120 KIT/3=100"},
    )
    max_joint_speed: float = flag(OUTLIER_SPEED, "faster turning joints are velocity outliers, in degrees per second")
    outliers: str = flag("keep", "keep clips with velocity outliers and report them, or drop them")
    encode_text: str | None = flag(None, f"also encode the captions, with: {', '.join(ENCODERS)}")
    text_dtype: str = flag("bf16", f"what text features are stored as: {', '.join(PRECISIONS)}")
    shard_mb: float = flag(64.0, "size of a shard in MiB; also what is held in memory")
    workers: int | None = flag(None, "processes; default: one a core, at most 8; changes no bit of the result")
    strict: bool = flag(False, "stop at the first file or clip that would be left out")
    overwrite: bool = flag(False, "replace a corpus at --out that was made differently; its text features are kept")
    actions: str | None = flag(
        None,
        f"sort the corpus into action types: {', '.join(MODES)}; without a value, supervised where captions, hints or "
        "--actions_file tell types; without --data_dir, the finished corpus at --out is sorted",
        nargs="?",
        const=AUTO,
    )
    action_types: int | None = flag(None, "number of action types; 6 unless --action_names gives another number")
    action_names: list[str] | None = flag(
        None, "names of the action types, as in captions' verbs, hints or --actions_file", nargs="+"
    )
    actions_from: str | None = flag(None, "another corpus whose router sorts this one, instead of a new one")

    def preparation(self) -> Preparation:
        """The checked task.

        Raises:
            UserError: a missing or wrong flag.
        """
        for name, example in (("data_dir", "AMASS"), ("out", "CORPUS")):
            if not getattr(self, name):
                raise UserError(f"--{name} is missing; give it, such as --{name} {example}")
        if self.split is not None and self.split_lists is not None:
            raise UserError(f"--split {self.split} and --split_lists {self.split_lists} exclude each other: give one")
        if self.encode_text != "qwen_clip" and (self.release_dir or self.system_prompt_file):
            name = "release_dir" if self.release_dir else "system_prompt_file"
            raise UserError(f"--{name} {getattr(self, name)} is for --encode_text qwen_clip, not {self.encode_text}")
        return Preparation(
            data_dir=Path(self.data_dir),
            out=Path(self.out),
            texts=self._texts(),
            index=_path(self.index),
            annotations=_path(self.annotations),
            babel=tuple(map(Path, self.babel)),
            exclude=_path(self.exclude),
            representation=self.representation,
            positions_relative_to=self.positions_relative_to,
            fps=self.fps,
            min_frames=self.min_frames,
            max_frames=self.max_frames,
            long_clips=self.long_clips,
            mirror=self.mirror,
            unconditional=self.unconditional,
            split=tuple(self.split or Preparation.split),
            split_lists=_path(self.split_lists),
            seed=self.seed,
            actions_file=_path(self.actions_file),
            rates=tuple(self.rates),
            max_joint_speed=self.max_joint_speed,
            outliers=self.outliers,
            encode_text=self.encode_text,
            text_dtype=self.text_dtype,
            text_sources=self.sources(),
            shard_mb=self.shard_mb,
            workers=min(8, os.cpu_count() or 1) if self.workers is None else self.workers,
            strict=self.strict,
            overwrite=self.overwrite,
        )

    def action_settings(self) -> ActionSettings | None:
        """How to sort into action types; None where that is not asked for.

        Raises:
            UserError: a wrong flag.
        """
        if self.actions is None:
            for name in ("action_types", "action_names", "actions_from"):
                if getattr(self, name) is not None:
                    raise UserError(f"--{name} says how to sort into action types: give --actions too")
            return None
        if not self.out:
            raise UserError("--out is missing; give it, such as --out CORPUS")
        names = None if self.action_names is None else tuple(self.action_names)
        router = _path(self.actions_from)
        return ActionSettings(self.actions, self.action_types, names, self.seed, router, progress=True)

    def require_finished_corpus(self) -> None:
        """Refuse flags of a preparation where only a finished corpus is to be sorted.

        Raises:
            UserError: such a flag.
        """
        kept = {"out", "seed", "workers", "check_against", "actions", "action_types", "action_names", "actions_from"}
        for one in fields(self):
            default = one.default if one.default_factory is MISSING else one.default_factory()
            if one.name not in kept and getattr(self, one.name) != default:
                raise UserError(f"--{one.name} is for preparing motions: give --data_dir too, or leave it out")

    def _texts(self) -> Path | None:
        if self.texts is None and self.index is not None:
            return Path(self.index).parent / "texts"
        return _path(self.texts)


def _path(given: str | None) -> Path | None:
    return None if given is None else Path(given)
