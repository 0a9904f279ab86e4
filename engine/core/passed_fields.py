"""Settings of Megatron-Core and vLLM that are passed on under their own names.

Only those are passed that say how something is computed and not what: neither is part of a stage's hash. A setting of
these libraries that a guarantee of Cascade rests on is refused, with the guarantee and the key to use instead.
"""

from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, ClassVar, Literal, Self

from cascade_rl.engine.core.errors import UserError

# The guarantee, and what to use instead, of the fields that Cascade sets itself.
MEGATRON_OWNED = {
    "use parallel.tensor, sequence, pipeline, virtual_pipeline, pipeline_layers, context, expert and expert_tensor":
        "tensor_model_parallel_size sequence_parallel pipeline_model_parallel_size "
        "virtual_pipeline_model_parallel_size pipeline_model_parallel_layout context_parallel_size "
        "num_layers_in_first_pipeline_stage num_layers_in_last_pipeline_stage expert_model_parallel_size "
        "expert_tensor_parallel_size microbatch_group_size_per_vp_stage",
    "use parallel.recompute": "recompute_granularity recompute_modules moe_layer_recompute",
    "trainer, checkpoint and engine hold the same bits of weights, so that precision is one setting of the whole "
    "stage; use parallel.precision":
        "params_dtype pipeline_dtype bf16 fp16 fp8 fp8_param fp4 fp4_param autocast_dtype enable_autocast "
        "fp32_residual_connection attention_softmax_in_fp32 grad_reduce_in_fp32 main_params_dtype main_grads_dtype "
        "exp_avg_dtype exp_avg_sq_dtype use_precision_aware_optimizer",
    "use router.trained, bias_update_rate and dispatcher of the stage":
        "moe_router_bias_update_rate moe_router_enable_expert_bias moe_token_dispatcher_type moe_enable_deepep",
    "the trainer uses exactly the experts that the sampler chose (docs/experts.md); use rollout.replay_routes":
        "moe_enable_routing_replay moe_router_fusion moe_router_dtype moe_router_force_load_balancing "
        "moe_router_force_biased moe_expert_capacity_factor moe_expert_rank_capacity_factor moe_token_dropping "
        "moe_token_drop_policy moe_pad_expert_input_to_capacity moe_input_jitter_eps mlp_chunks_for_training",
    "one global batch has one answer: losses are sums with one divisor (docs/parallelism.md)":
        "calculate_per_token_loss gradient_reduce_div_fusion average_in_collective grad_scale_func "
        "finalize_model_grads_func no_sync_func cross_entropy_loss_fusion cross_entropy_fusion_impl",
    "no loss but the stage's own is optimised":
        "moe_aux_loss_coeff moe_z_loss_coeff moe_router_load_balancing_type mtp_num_layers",
    "trainer and sampler compute the same log-probs, which dropout would change": "hidden_dropout attention_dropout",
    "packed rows differ in length": "variable_seq_lengths cuda_graph_impl enable_cuda_graph",
    "with batched communication a pipeline of two swaps activations and gradients (docs/parallelism.md)":
        "overlap_p2p_comm batch_p2p_comm",
    "use optimizer of the stage": "optimizer lr min_lr weight_decay adam_beta1 adam_beta2 adam_eps clip_grad",
    "checkpoints hold optimizer state that any layout can load":
        "use_distributed_optimizer use_layer_wise_distributed_optimizer use_megatron_fsdp "
        "num_distributed_optimizer_instances optimizer_cuda_graph",
    "a gradient that is not finite leaves the policy as it was": "check_for_nan_in_grad loss_scale",
    "the shape of the model comes from the config.json of base":
        "num_layers hidden_size ffn_hidden_size num_attention_heads num_query_groups kv_channels num_moe_experts "
        "moe_router_topk moe_ffn_hidden_size moe_shared_expert_intermediate_size mamba_state_dim mamba_num_heads "
        "mamba_head_dim mamba_num_groups layernorm_epsilon normalization qk_layernorm add_bias_linear activation_func",
    "the initial weights follow from the seed of the cascade": "init_method_std use_cpu_initialization",
    "an interrupted run ends with the same bits; use rollout.deterministic": "deterministic_mode batch_invariant_mode",
}  # fmt: skip
VLLM_OWNED = {
    "use rollout.max_model_len: prompts, answers and token budgets are checked against it": "max_model_len",
    "use rollout.max_num_seqs": "max_num_seqs",
    "use rollout.kv_cache_mib: the trainer is on the same card":
        "kv_cache_memory_bytes gpu_memory_utilization num_gpu_blocks_override cpu_offload_gb",
    "use rollout.tensor, engines and expert_parallel, by which a refit finds each shard":
        "tensor_parallel_size pipeline_parallel_size data_parallel_size enable_expert_parallel "
        "prefill_context_parallel_size decode_context_parallel_size enable_eplb nnodes distributed_executor_backend",
    "use rollout.sleep": "enable_sleep_mode",
    "use rollout.dtype": "dtype",
    "trainer and sampler hold the same weights and compute the same log-probs":
        "quantization kv_cache_dtype mamba_cache_dtype mamba_ssm_cache_dtype hf_overrides enable_lora model_impl",
    "the trainer takes log-probs by the sampler's function, of every token":
        "logprobs_mode max_logprobs speculative_config return_sampling_mask use_fp64_gumbel",
    "use seed of the cascade: a sample's number follows from it and from its prompt": "seed",
    "use rollout.replay_routes": "enable_return_routed_experts",
    "a cached prefix has the bits of another batch, and not every build of vLLM knows its experts; whether prefixes "
    "are cached follows from rollout.deterministic and replay_routes":
        "enable_prefix_caching prefix_caching_hash_algo mamba_cache_mode",
    "each sample says which version of the weights drew each token": "async_scheduling",
    "a refit brings every weight": "load_format weight_transfer_config model_weights",
    "the model and the tokenizer are those of the stage":
        "model tokenizer skip_tokenizer_init generation_config override_generation_config trust_remote_code",
    "use sampling of the stage": "logits_processors",
    "Cascade's worker takes the log-probs and the weights": "worker_cls worker_extension_cls scheduler_cls",
}  # fmt: skip
MEGATRON_NEEDS = {
    "overlap_param_gather": "overlap_grad_reduce",
    "bucket_size": "overlap_grad_reduce",
    "optimizer_cpu_offload": "optimizer_offload_fraction",
    "optimizer_offload_fraction": "optimizer_cpu_offload",
    "overlap_cpu_optimizer_d2h_h2d": "optimizer_cpu_offload",
    "use_torch_optimizer_for_cpu_offload": "optimizer_cpu_offload",
}


class PassedFields:
    """Frozen dataclasses of fields that are None unless given. UserError for any other name."""

    LIBRARY: ClassVar[str]
    KEY: ClassVar[str]
    OWNED: ClassVar[dict[str, str]]

    def __new__(cls, *_values: Any, **given: Any) -> Self:
        for name in given:
            cls.check_name(name)
        return super().__new__(cls)

    @classmethod
    def names(cls) -> list[str]:
        return [item.name for item in fields(cls)]  # type: ignore[arg-type]

    @classmethod
    def check_name(cls, name: str) -> None:
        """Raises UserError unless the field is passed on."""
        if name in cls.names():
            return
        reasons = {owned: reason for reason, names in cls.OWNED.items() for owned in names.split()}
        if name in reasons:
            raise UserError(
                f"{cls.KEY}.{name}: expected a field that Cascade leaves to {cls.LIBRARY}, found one that it sets "
                f"itself: {reasons[name]}. Leave the field out."
            )
        nearest = get_close_matches(name, [*cls.names(), *reasons], n=1, cutoff=0.0)[0]
        raise UserError(
            f"{cls.KEY}.{name}: expected one of the fields of {cls.LIBRARY} that are passed on "
            f"({', '.join(cls.names())}), found '{name}'. Did you mean '{nearest}'?"
        )

    @property
    def given(self) -> dict[str, Any]:
        """The fields that are not None, lists as lists."""
        values = {name: getattr(self, name) for name in self.names()}
        return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items() if v is not None}


@dataclass(frozen=True)
class MegatronFields(PassedFields):
    """Fields of TransformerConfig, DistributedDataParallelConfig and OptimizerConfig of Megatron-Core 0.19. None: its
    own default.

    recompute_method      which layers parallel.recompute=full computes again: "uniform", all, in groups that keep the
                          input of their first layer; "block", the first of each pipeline stage; None: all
    recompute_num_layers  layers of such a group, or of such a block
    deallocate_pipeline_outputs  an output is freed once the next pipeline stage has it
    apply_rope_fusion     the rotary embedding is one kernel
    bias_activation_fusion  bias and activation of an MLP are one kernel
    bias_dropout_fusion   bias, dropout and residual are one kernel
    gradient_accumulation_fusion  the product that makes a weight's gradient also adds it up; needs APEX's extension
    moe_permute_fusion    sorting tokens by expert is one kernel
    cp_comm_type          how attention exchanges keys and values between context parallel ranks
    high_priority_a2a_comm_stream  the stream of all-to-alls that overlap with computation has priority
    moe_shared_expert_overlap  shared experts compute while the dispatcher sends
    moe_flex_dispatcher_backend  library of router.dispatcher=flex
    moe_deepep_num_sms    multiprocessors that DeepEP may use
    moe_hybridep_num_sms  multiprocessors that HybridEP may use
    overlap_grad_reduce   gradients are reduced while the backward pass runs
    overlap_param_gather  weights are gathered while the forward pass runs
    bucket_size           parameters of a bucket of that reduction
    pad_buckets_for_high_nccl_busbw  bucket sizes are multiples of 2^16
    optimizer_cpu_offload  Adam's state and its step are in host memory
    optimizer_offload_fraction  share of the state that is
    overlap_cpu_optimizer_d2h_h2d  transfers overlap with the step in host memory
    use_torch_optimizer_for_cpu_offload  the step in host memory is torch's
    """

    LIBRARY = "Megatron-Core"
    KEY = "parallel.megatron"
    OWNED = MEGATRON_OWNED

    # activations
    recompute_method: Literal["uniform", "block"] | None = None
    recompute_num_layers: int | None = None
    deallocate_pipeline_outputs: bool | None = None
    # fused kernels
    apply_rope_fusion: bool | None = None
    bias_activation_fusion: bool | None = None
    bias_dropout_fusion: bool | None = None
    gradient_accumulation_fusion: bool | None = None
    moe_permute_fusion: bool | None = None
    # communication of experts and of context parallelism
    cp_comm_type: Literal["p2p", "all_gather", "a2a"] | None = None
    high_priority_a2a_comm_stream: bool | None = None
    moe_shared_expert_overlap: bool | None = None
    moe_flex_dispatcher_backend: Literal["deepep", "hybridep"] | None = None
    moe_deepep_num_sms: int | None = None
    moe_hybridep_num_sms: int | None = None
    # gradients and weights of data parallel ranks
    overlap_grad_reduce: bool | None = None
    overlap_param_gather: bool | None = None
    bucket_size: int | None = None
    pad_buckets_for_high_nccl_busbw: bool | None = None
    # Adam's state in host memory
    optimizer_cpu_offload: bool | None = None
    optimizer_offload_fraction: float | None = None
    overlap_cpu_optimizer_d2h_h2d: bool | None = None
    use_torch_optimizer_for_cpu_offload: bool | None = None

    def __post_init__(self) -> None:
        for name, needed in MEGATRON_NEEDS.items():
            if getattr(self, name) and not getattr(self, needed):
                raise UserError(
                    f"{self.KEY}.{name}: expected {needed} with it, without which it has no effect, found "
                    f"{getattr(self, needed)}. Set {self.KEY}.{needed}, or leave {name} out."
                )


@dataclass(frozen=True)
class VllmFields(PassedFields):
    """Fields of EngineArgs of vLLM 0.32. None: its own default.

    max_num_batched_tokens  tokens of all requests in one step of an engine
    enable_chunked_prefill  a long prompt is computed in parts, between steps of other requests
    long_prefill_token_threshold  a longer prompt counts as long: a step takes no more of it than this; 0: no limit
    scheduler_reserve_full_isl  a request is admitted only if the cache has room for its whole prompt
    enforce_eager           no compilation and no CUDA graphs
    cudagraph_capture_sizes  batch sizes of CUDA graphs, in tokens
    max_cudagraph_capture_size  the largest of them, if they are not listed
    enable_flashinfer_autotune  FlashInfer tries its kernels when the engine starts
    disable_cascade_attn    no effect since vLLM 0.32, which has no cascade attention any more
    disable_custom_all_reduce  NCCL instead of vLLM's own all-reduce
    block_size              tokens of a block of the cache
    mamba_block_size        tokens of a block of the Mamba cache, a multiple of 8; needs cached prefixes
    numa_bind               workers run on the cores and memory beside their card
    distributed_timeout_seconds  limit of a collective operation between workers
    """

    LIBRARY = "vLLM"
    KEY = "rollout.vllm"
    OWNED = VLLM_OWNED

    # scheduling
    max_num_batched_tokens: int | None = None
    enable_chunked_prefill: bool | None = None
    long_prefill_token_threshold: int | None = None
    scheduler_reserve_full_isl: bool | None = None
    # compilation and kernels
    enforce_eager: bool | None = None
    cudagraph_capture_sizes: tuple[int, ...] | None = None
    max_cudagraph_capture_size: int | None = None
    enable_flashinfer_autotune: bool | None = None
    disable_cascade_attn: bool | None = None
    disable_custom_all_reduce: bool | None = None
    # cache
    block_size: int | None = None
    mamba_block_size: int | None = None
    # machine
    numa_bind: bool | None = None
    distributed_timeout_seconds: int | None = None
