"""A small model is one of its family, whatever the published config says."""

import pytest

from cascade_rl.engine.core.settings import ParallelConfig
from cascade_rl.engine.models import family_of, read_config
from cascade_rl.engine.models.layout import check_layout
from cascade_rl.launchers.plan.model import PUBLISHED
from cascade_rl.launchers.rehearse.small_model import ENTRIES, LAYERS, small_model


@pytest.mark.parametrize("published", sorted(folder.name for folder in PUBLISHED.iterdir() if folder.is_dir()))
def test_a_published_model_is_made_small(published: str) -> None:
    whole = read_config(PUBLISHED / published)
    small = small_model(whole, positions=512, vocabulary=ENTRIES)
    check_layout(small, ParallelConfig(tensor=2, sequence=True, pipeline=2))
    pattern = family_of(small).pattern(small)
    assert set(pattern) == set(family_of(whole).pattern(whole))
    assert len(pattern) == 2 * LAYERS or "hybrid_override_pattern" in whole
    assert family_of(small).name_map(small).beside == (("mtp.",) if "full_attention_interval" in whole else ())
    assert family_of(small).name_map(small).parameter_count() < 6_000_000
