"""Mode and model of one session, for runners that keep them in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from sessions.errors import RunnerError, Unsupported

__all__ = ["Mode", "Model", "Settings"]

_INVALID_PARAMS: Final = -32602
_INTERNAL_ERROR: Final = -32603


@attrs.frozen(slots=True)
class Mode:
    """An approval mode. ``id`` and ``name`` are both shown to clients (ACP-191)."""

    id: str
    name: str
    description: str = ""


@attrs.frozen(slots=True)
class Model:
    """A model to choose. ``context`` is its window in tokens, 0 where nobody knows."""

    id: str
    name: str
    description: str = ""
    context: int = 0


class Settings:
    """The current mode and model, and the three shapes clients read them in: modes, models, configOptions."""

    def __init__(
        self,
        modes: Sequence[Mode] = (),
        models: Sequence[Model] = (),
        mode: str | None = None,
        model: str | None = None,
    ) -> None:
        self._modes = tuple(modes)
        self._models = tuple(models)
        self.mode = mode if mode is not None else (modes[0].id if modes else None)
        self.model = model if model is not None else (models[0].id if models else None)

    def copy(self) -> Settings:
        return Settings(self._modes, self._models, self.mode, self.model)

    @property
    def current_model(self) -> Model | None:
        return next((model for model in self._models if model.id == self.model), None)

    def state(self) -> dict[str, Any]:
        """``modes``, ``models`` and ``configOptions``; only what there is to choose from."""
        state: dict[str, Any] = {}
        if self._models:
            state["models"] = {"currentModelId": self.model, "availableModels": [_model(each) for each in self._models]}
        if self._modes:
            modes = [{"id": each.id, "name": each.name, "description": each.description} for each in self._modes]
            state["modes"] = {"currentModeId": self.mode, "availableModes": modes}
        if options := self._config_options():
            state["configOptions"] = options
        return state

    def set_mode(self, mode_id: str) -> dict[str, Any]:
        """Raises `RunnerError` -32602 for a mode that is not offered (ACP-192)."""
        offered = [mode.id for mode in self._modes]
        if not offered:
            raise Unsupported("There are no modes to choose from", _INVALID_PARAMS)
        if mode_id not in offered:
            message = f'invalid modeId "{mode_id}" (expected one of: {", ".join(offered)})'
            raise RunnerError(message, _INVALID_PARAMS)
        self.mode = mode_id
        return {}

    def set_model(self, model_id: str) -> dict[str, Any]:
        """Raises `RunnerError` -32603 with ``data.details`` for an unknown model (REST-120)."""
        if not self._models:
            raise Unsupported("There are no models to choose from", _INVALID_PARAMS)
        if model_id not in [model.id for model in self._models]:
            raise RunnerError("Internal error", _INTERNAL_ERROR, {"details": f"Model '{model_id}' not found"})
        self.model = model_id
        return {}

    def set_config_option(self, config_id: str, value: str) -> Mapping[str, Any]:
        """Raises `RunnerError` as the two above, and -32602 for an option there is not."""
        if config_id == "mode":
            self.set_mode(value)
        elif config_id == "model":
            self.set_model(value)
        else:
            raise RunnerError(f"ConfigId not supported: {config_id} (supported: model, mode)", _INVALID_PARAMS)
        return {"configOptions": self._config_options()}

    def _config_options(self) -> list[dict[str, Any]]:
        options = []
        if self._modes:
            options.append(_select("mode", "Mode", "Session permission mode", self.mode, self._modes))
        if self._models:
            options.append(_select("model", "Model", "AI model to use", self.model, self._models))
        return options


def _model(model: Model) -> dict[str, Any]:
    # The union of what strict ACP clients and the SDK look for (ACP-191).
    shown: dict[str, Any] = {"id": model.id, "modelId": model.id, "name": model.name, "description": model.description}
    if model.context:
        shown["_meta"] = {"contextLimit": model.context}
    return shown


def _select(
    config_id: str, name: str, description: str, current: str | None, choices: Sequence[Mode] | Sequence[Model]
) -> dict[str, Any]:
    return {
        "id": config_id,
        "name": name,
        "description": description,
        "category": config_id,
        "type": "select",
        "currentValue": current,
        "options": [{"value": each.id, "name": each.name, "description": each.description} for each in choices],
    }
