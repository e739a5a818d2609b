"""Names of kernels: each family of shared/design/nsight-systems.md §5 is communication, what only sounds like it is compute."""

from __future__ import annotations

import re
import warnings

import pytest

from ddpprof.analysis import kernels
from ddpprof.errors import UsageError
from ddpprof.model import Kind, Source

COLLECTIVES = {
    # NCCL up to 2.7
    "ncclAllReduceRingLLKernel_sum_f32(ncclColl)": "AllReduce",
    "ncclAllReduceTreeLL128Kernel_sum_f16(ncclColl)": "AllReduce",
    "ncclAllGatherRingKernel_copy_i8(ncclColl)": "AllGather",
    "ncclBroadcastCollNetKernel_copy_i8(ncclColl)": "Broadcast",
    # 2.8 to 2.18
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)": "AllReduce",
    "ncclKernel_ReduceScatter_TREE_LL_Sum_half(ncclWorkElem)": "ReduceScatter",
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)": "SendRecv",
    # 2.19 and later
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096>)": "AllReduce",
    "ncclDevKernel_AllReduce_Sum_bf16_TREE_LL(ncclDevKernelArgsStorage<4096>)": "AllReduce",
    "ncclDevKernel_Reduce_Sum_u8_RING_LL(ncclDevComm *, unsigned long, ncclWork *)": "Reduce",
    "ncclDevKernel_ReduceScatter_Sum_f8e4m3_RING_LL(ncclDevKernelArgsStorage<4096>)": "ReduceScatter",
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096>)": "AllGather",
    "ncclDevKernel_AllGatherV_RING_LL(ncclDevKernelArgsStorage<4096>)": "AllGather",
    "ncclDevKernel_AllGather": "AllGather",
    "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096>)": "Broadcast",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096>)": "SendRecv",
    "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096>)": "unknown",
    "nccldevkernel_allreduce": "AllReduce",
    # symmetric memory
    "ncclSymDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_f32(ncclSymDevArgs)": "AllReduce",
    "ncclSymkDevKernel_AllReduce_AGxLL_R_sum_f32(ncclSymkDevWorkArgs4K)": "AllReduce",
    "ncclSymkDevKernel_AllGather_LLMC(ncclSymkDevWorkArgs4K)": "AllGather",
    # RCCL and MSCCL
    "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)": "unknown",
    "ncclDevKernelDebug_Generic(ncclDevKernelArgsStorage<4096ul>)": "unknown",
    "mscclKernel_Sum_float_LL(ncclDevComm*, mscclAlgo*, mscclWork*)": "unknown",
    "rcclGenericKernel<1, false>(ncclDevComm*)": "unknown",
    # others
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals)": "AllReduce",
    "void sglang::cross_device_reduce_2stage<half, 4>(RankData*)": "AllReduce",
    "void tensorrt_llm::kernels::oneShotAllReduceKernel<half, 8>(tensorrt_llm::kernels::AllReduceParams)": "AllReduce",
    "void twoShotAllReduceKernel<float, 4>(AllReduceParams)": "AllReduce",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(int)0, half>(T3)": "AllReduce",
    "void multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)": "AllReduce",
    "void multimem_one_shot_all_reduce_kernel<float, 16>(float*)": "AllReduce",
    "void c10d::symmetric_memory::one_shot_all_reduce_kernel<float, 16, 8>(float**)": "AllReduce",
    "void two_shot_all_reduce_inplace_kernel<float, 16, 8, true>(float**)": "AllReduce",
    "void multimem_all_gather_kernel<16>(void*)": "AllGather",
    "c10d::symmetric_memory::barrier_kernel(unsigned int **, int, int, int, unsigned long)": "unknown",
    "nvshmemi_transfer_put_kernel(void*)": "unknown",
    "barrier_on_stream_kernel(int)": "unknown",
    "void deep_ep::internode::dispatch<false, 8, 4096>(int4*)": "Dispatch",
    "void deep_ep::intranode::combine<__nv_bfloat16, 8, 768>(__nv_bfloat16*)": "Combine",
    "userbuffers_fp16_sum_inplace_gpu_rr_rs(int)": "unknown",
}
COMPUTE = [
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float>>>(T3)",
    "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long)",
    "void at::native::_scatter_gather_elementwise_kernel<128, 4>(int)",
    "void at::native::indexSelectLargeIndex<float, long>(float)",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<2>>(T1)",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)",
    "void my_kernel<AllReduce>(float*)",
    "void cutlass::Kernel2<GemmWithAllReduceEpilogue, ReduceScatterTag>(T1)",
    "void user::broadcast_add<float>(float*)",
    "void user::dispatch<int>(int*)",
    "void cub::DeviceReduceKernel<cub::Policy600>(float*)",
    "void all_to_all_permute_indices(int*)",
    "allreduce_gradients_to_master(float*)",
    "my_barrier_kernel(int)",
    "void oneRankReduce<ncclFunction_t, FuncPreMulSum<float>>(void*, void*, unsigned long)",
    "spin_kernel",
    "triton_red_fused__to_copy_sum_3",
    "",
]


@pytest.mark.parametrize("name", COLLECTIVES)
def test_communication(name: str) -> None:
    assert kernels.kind_of(name, Source.KERNEL) is Kind.COMM
    assert kernels.operation_of(name) == COLLECTIVES[name]


@pytest.mark.parametrize("name", COMPUTE)
def test_what_only_sounds_like_it_is_compute(name: str) -> None:
    assert kernels.kind_of(name, Source.KERNEL) is Kind.COMPUTE


def test_the_protocol_and_operation_in_a_template_argument_say_nothing() -> None:
    assert kernels.operation_of("void ncclGenericKernel<AllGather>(ncclDevComm*)") == "unknown"
    assert kernels.operation_of("ncclDevKernel_Generic(ncclReduceScatterArgs)") == "unknown"


@pytest.mark.parametrize(
    ("name", "source", "kind"),
    [
        ("memcpy PtoP", Source.MEMCPY, Kind.MEMORY),
        ("memset", Source.MEMSET, Kind.MEMORY),
        ("memcpy nccl", Source.MEMCPY, Kind.MEMORY),
        ("CUDA graph", Source.GRAPH, Kind.GRAPH),
        ("nccl graph", Source.GRAPH, Kind.GRAPH),
        ("allreduce/3", Source.HOST, Kind.COMM),
        ("gloo:all_reduce", Source.HOST, Kind.COMM),
        ("delay/3", Source.HOST, Kind.COMPUTE),
        ("my allreduce/3", Source.HOST, Kind.COMPUTE),
    ],
)
def test_by_source(name: str, source: Source, kind: Kind) -> None:
    assert kernels.kind_of(name, source) is kind


def test_own_patterns_win_over_known_names_and_not_comm_over_all() -> None:
    mine, nccl = kernels.patterns(["my_op", "nccl"], "--comm")
    assert kernels.kind_of("void MY_OP<int>()", Source.KERNEL, comm=[mine]) is Kind.COMM
    assert kernels.kind_of("memcpy my_op", Source.MEMCPY, comm=[mine]) is Kind.COMM
    assert kernels.kind_of("ncclDevKernel_SendRecv", Source.KERNEL, not_comm=[nccl]) is Kind.COMPUTE
    assert kernels.kind_of("nccl my_op", Source.KERNEL, comm=[mine], not_comm=[nccl]) is Kind.COMPUTE
    assert kernels.kind_of("memcpy my_op", Source.MEMCPY, comm=[mine], not_comm=[mine]) is Kind.MEMORY


@pytest.mark.parametrize("text", ["(", "*", "a{99999999999999999999}", "(?P<1>a)"])
def test_no_regular_expression(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--comm: not a regular expression: .*\nEscape brackets"):
        kernels.patterns([text], "--comm")


def test_a_pattern_that_python_warns_of_is_just_a_pattern() -> None:
    with warnings.catch_warnings(record=True) as told:
        (pattern,) = kernels.patterns(["[[a]"], "--comm")
    assert (pattern.flags & re.IGNORECASE, told) == (re.IGNORECASE, [])


@pytest.mark.parametrize("text", ["ncclAllReduce", "ncclGroupEnd", "nccl:all_reduce", "gloo:all_reduce", "c10d::allreduce_"])
def test_collective_calls(text: str) -> None:
    assert kernels.COLLECTIVE_CALL.fullmatch(text)
    assert not kernels.COLLECTIVE_CALL.fullmatch(f"my {text}")


@pytest.mark.parametrize(("text", "is_call"), [("ncclGroupEnd", True), ("ncclCommInitRank", False), ("nccl:all_reduce", False)])
def test_api_calls(text: str, is_call: bool) -> None:
    assert bool(kernels.API_CALL.fullmatch(text)) is is_call
