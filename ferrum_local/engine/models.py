"""The models of one engine together: known by name, loaded when needed, described, let go."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from ferrum_local.audio_types import AudioConfig
from ferrum_local.engine.contracts import ModelInfo, ModelLease
from ferrum_local.engine.loading import released_on_error, wait_for_model
from ferrum_local.engine.model_manager import ModelManager
from ferrum_local.engine.model_table import KnownModel, ModelTable, kind_for_clients
from ferrum_local.engine.runtimes import Runtimes
from ferrum_local.errors import FerrumError, ModelLoadError, Unavailable
from ferrum_local.registry.facts import modified_s_of, size_bytes_of
from ferrum_local.types import LibraryOptions, ModelSpec

logger = logging.getLogger(__name__)

_LOADING_RETRY_S = 2.0

OnLoading = Callable[[str, int], None]


class EngineModels:
    """What :class:`ferrum_local.engine.facade.LocalEngine` does with models as a whole."""

    def __init__(
        self,
        models: Sequence[ModelSpec],
        audio: AudioConfig,
        library: LibraryOptions,
        runtimes: Runtimes,
        *,
        any_model_name: bool,
    ) -> None:
        self._runtimes = runtimes
        self._manager = ModelManager(runtimes)
        self._table = ModelTable(
            models, audio, library,
            info_of=self.info, capabilities_of=self._capabilities,
            is_loaded=self._manager.is_loaded, any_model_name=any_model_name,
        )  # fmt: skip
        self._seen: dict[str, tuple[int, int]] = {}
        self._started = False  # the models of the start are loaded
        self._failed = False  # one of them could not be
        self._draining = False

    # -- life ------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """As ``EngineStatus.state``."""
        if self._draining:
            return "draining"
        if self._failed:
            return "failed"
        return "ready" if self._started else "loading"

    def import_for_load(self) -> bool:
        """See ``Engine.import_for_load``."""
        return self._runtimes.import_for([model.spec for model in self._table.named])

    def load(self, on_loading: OnLoading | None) -> None:
        """Load every model of the start, in order.

        :raises ModelLoadError: for the first that cannot be.
        """
        self._table.rescan()
        for model in self._table.named:
            try:
                self._load_now(model, on_loading)
            except ModelLoadError as error:
                # A voice that cannot speak is told in the status; the rest serves on.
                if model.spec.kind != "speech":
                    self._failed = True
                    raise
                logger.error("%s", error.message)
        self._started = True

    def _load_now(self, model: KnownModel, on_loading: OnLoading | None) -> None:
        spec = model.spec
        tell = None if spec.kind in ("transcription", "speech") else on_loading

        def on_progress(fraction: float) -> None:
            """Weights count up to 99: after them come the context and a first step."""
            if tell is not None:
                tell(spec.id, min(99, int(fraction * 100)))

        on_progress(0.0)
        try:
            self._manager.load_now(spec, keep_alive_s=model.keep_alive_s, on_progress=on_progress)
        except FerrumError:
            raise
        except Exception as error:  # say which model, and never stay at "loading"
            raise ModelLoadError(f"{spec.path}: {error}") from error
        if tell is not None:
            tell(spec.id, 100)

    def start_draining(self) -> None:
        self._draining = True

    def close(self) -> None:
        """Load and free no more; whoever waits is told."""
        self._manager.close()

    # -- use -------------------------------------------------------------------------------

    def resolve(self, name: str | None, kind: str | None) -> ModelInfo:
        return self.info(self._table.find(name, kind))

    def infos(self, *, fresh: bool = False) -> tuple[ModelInfo, ...]:
        """:param fresh: look for new files first."""
        if fresh:
            self._table.rescan()
        return self._table.infos()

    def lease(self, model_id: str, keep_alive_s: float | None = None) -> ModelLease:
        """See ``Engine.lease_model``."""
        self._refuse_while_draining()
        if not self._started and not self._manager.is_ready(model_id):
            raise Unavailable(
                f"{model_id} is still loading.", retry_after_s=_LOADING_RETRY_S, code="loading"
            )
        model = self._table.get(model_id)
        return self._manager.lease(
            model.spec, default_keep_alive_s=model.keep_alive_s, keep_alive_s=keep_alive_s
        )

    def leased(
        self,
        name: str | None,
        kind: str,
        *,
        deadline_s: float | None = None,
        is_abandoned: Callable[[], bool] | None = None,
    ) -> tuple[str, ModelLease]:
        """The model for a request that is to run now: ready, and held until it is released.

        :param deadline_s: seconds that a load may take.
        :returns: its id, and what holds it.
        """
        self._refuse_while_draining()  # whatever the name
        model_id = self._table.find(name, kind).spec.id
        lease = self.lease(model_id)
        with released_on_error(lease):
            wait_for_model(lease, deadline_s=deadline_s, is_abandoned=is_abandoned)
        return model_id, lease

    def unload(self, model_id: str) -> ModelInfo:
        model = self._table.get(model_id)
        self._manager.unload(model_id)
        return self.info(model)

    def _refuse_while_draining(self) -> None:
        if self._draining:
            raise Unavailable("The server is shutting down.", retry_after_s=5, code="draining")

    def _capabilities(self, model: KnownModel) -> tuple[str, ...]:
        return self._runtimes.capabilities(model.spec, model.facts)

    def _date_and_size(self, path: str, *, is_ready: bool) -> tuple[int, int]:
        """Of a model's files. Asked for with each request, so they are looked at once for as long
        as the model is loaded; zeros if they were deleted before."""
        known = self._seen.get(path) if is_ready else None
        if known is None:
            known = modified_s_of(path), size_bytes_of(path)
            self._seen[path] = known
        return known

    def info(self, model: KnownModel) -> ModelInfo:
        """A model as it is right now."""
        spec, facts = model.spec, model.facts
        view = self._manager.view(spec.id)
        state = view.state.value
        if facts is not None:
            created, size_bytes = facts.modified_s, facts.size_bytes
        else:
            created, size_bytes = self._date_and_size(spec.path, is_ready=state == "ready")
        said = model.file_facts
        if model.is_named and not self._started and state == "unloaded":
            state = "loading"  # its turn comes
        return ModelInfo(
            id=spec.id,
            kind=kind_for_clients(spec),
            aliases=spec.aliases,
            path=spec.path,
            state=state,
            created=created,
            size_bytes=size_bytes,
            context_length=self._runtimes.n_ctx(spec.id) or (facts and facts.context_length) or 0,
            capabilities=self._capabilities(model),
            error=view.error,
            progress=view.percent,
            expires_in_s=view.expires_in_s,
            quantization=said.quantization if said else None,
            license=said.license if said else None,
            languages=said.languages if said else (),
            lora_scales=tuple(lora.scale for lora in spec.loras),
        )
