"""The position of each rank in a layout, in pure numbers: Megatron's order of ranks without its process groups."""

from cascade_rl.engine.core.settings import ParallelConfig, check_world
from cascade_rl.engine.models.name_map import Cut, Place


def place_of(rank: int, world: int, parallel: ParallelConfig) -> Place:
    """The place that `place_of_this_rank` gives on rank `rank` of `world`.

    Megatron counts ranks in the order tensor, context, data, pipeline for the dense layers, and expert tensor, expert,
    expert data, pipeline for the experts. Raises UserError as `check_world` does.
    """
    check_world(parallel, world)
    stage = world // parallel.pipeline  # ranks
    inside, experts = rank % stage, parallel.expert_tensor * parallel.expert
    return Place(
        tensor=Cut(inside % parallel.tensor, parallel.tensor),
        pipeline=Cut(rank // stage, parallel.pipeline),
        virtual_pipeline=parallel.virtual_pipeline,
        pipeline_layers=parallel.pipeline_layers,
        expert=Cut(inside // parallel.expert_tensor % parallel.expert, parallel.expert),
        expert_tensor=Cut(inside % parallel.expert_tensor, parallel.expert_tensor),
        data=Cut(inside // parallel.tensor, stage // parallel.tensor),
        expert_data=Cut(inside // experts, stage // experts),
    )
