"""What the controller of caps remembers between steps: one small JSON file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from scorer.bundle import inspect
from scorer.durable import write_atomically
from scorer.learn.errors import DataError
from scorer.learn.experience import Experience
from scorer.learn.guardrails.caps import Duals, attribute_table
from scorer.learn.guardrails.controller import CapState, ControllerSettings, control, windows_of


@dataclass(frozen=True)
class ControllerState:
    """The caps under control, and up to when decisions were taken into account.

    Attributes:
        through_ms: decisions before this were; a log that holds them again changes nothing.
        caps: one state each.
    """

    through_ms: int
    caps: tuple[CapState, ...]

    @classmethod
    def start(cls, duals: Duals, through_ms: int) -> ControllerState:
        """Return the first state, from the solution of the caps."""
        return cls(
            through_ms,
            tuple(
                CapState(name, limit, price, sensitivity)
                for name, limit, price, sensitivity in zip(
                    duals.attributes, duals.limits, duals.prices, duals.sensitivity, strict=True
                )
            ),
        )

    @classmethod
    def read(cls, path: Path) -> ControllerState:
        """From its file.

        Raises:
            DataError: it is missing or not a state.
        """
        try:
            content = json.loads(path.read_bytes())
            return cls(
                int(content["through_ms"]),
                tuple(
                    CapState(**{**cap, "recent": tuple((int(n), float(use)) for n, use in cap["recent"])})
                    for cap in content["caps"]
                ),
            )
        except FileNotFoundError:
            raise DataError(
                f'state "{path}" is missing; start it with `scorer learn guardrails solve --state`'
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f'state "{path}" is damaged ({error}); solve again to make a new one') from None

    def write(self, path: Path) -> None:
        """To its file, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(asdict(self), indent=1).encode() + b"\n")

    def follow(self, experience: Experience, bundle: Path, settings: ControllerSettings) -> ControllerState:
        """After the whole windows of new decisions.

        Args:
            experience: decisions; those before `through_ms` are passed over.
            bundle: for the attributes of the catalogue.
            settings: the controller's.
        """
        actions = inspect(bundle).actions
        names = [cap.attribute for cap in self.caps]
        table = dict(zip(names, attribute_table(actions, names), strict=True))
        length = round(settings.window_minutes * 60_000)
        # The window that is under way waits for its end.
        end = int(experience.time_ms.max(initial=0)) // length * length
        new = experience.between(self.through_ms, end)
        if len(new) == 0:
            return self
        windows = windows_of(new, table, settings.window_minutes)
        return ControllerState(end, control(self.caps, windows, settings))
