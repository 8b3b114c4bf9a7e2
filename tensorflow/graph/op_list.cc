// SPDX-License-Identifier: Apache-2.0
// The table of ops. Signatures, attributes and the types of CPU kernels are those of TensorFlow
// 2.15; GPUs support the ops that move tensors and elementwise arithmetic.
#include "tensorflow/graph/op_list.h"

namespace ferry::graph {
namespace {

// As in TensorFlow, int32 tensors of GPU nodes are in host memory: they are shapes and axes.
constexpr absl::string_view kMove = "CPU; GPU T{$device}; GPU T{int32}@*";
constexpr absl::string_view kArithmetic =
    "CPU T{$number}; GPU T{half bfloat16 float double int64}; GPU T{int32}@*";
constexpr absl::string_view kRealArithmetic =
    "CPU T{$real $integer}; GPU T{half bfloat16 float double int64}; GPU T{int32}@*";
constexpr absl::string_view kAnyHostTensor = "CPU T{$number bool string}";
// Ops that read only shapes.
constexpr absl::string_view kShapeOf = "CPU; GPU T{$device}@output; GPU T{int32}@*";

constexpr absl::string_view kSendAttrs =
    "T:type; tensor_name:string; send_device:string; send_device_incarnation:int; "
    "recv_device:string; client_terminated:bool=false";
constexpr absl::string_view kRecvAttrs =
    "tensor_type:type; tensor_name:string; send_device:string; send_device_incarnation:int; "
    "recv_device:string; client_terminated:bool=false";
constexpr absl::string_view kReductionAttrs =
    "keep_dims:bool=false; T:type{$number $quantized}; Tidx:type{int32 int64}=int32";
constexpr absl::string_view kOrderedReductionAttrs =
    "keep_dims:bool=false; T:type{$real $integer $quantized}; Tidx:type{int32 int64}=int32";
constexpr absl::string_view kRandomAttrs =
    "seed:int=0; seed2:int=0; dtype:type{half bfloat16 float double}; T:type{int32 int64}";

constexpr absl::string_view kGroupKernels = "CPU; GPU T{$device}; GPU T{int32}@*";
constexpr absl::string_view kGroupInputKernels =
    "CPU; GPU T{$device}@group_size,group_key,instance_key; GPU T{int32}@*";
constexpr absl::string_view kGroupAttrs =
    "T:type{bool float half double int32 int64}; group_size:int; group_key:int; instance_key:int; "
    "shape:shape; communication_hint:string=auto; timeout_seconds:float=0";

constexpr OpRow kRows[] = {
    // Values that come from elsewhere.
    {"Placeholder", "-> output:dtype", "dtype:type; shape:shape=unknown", "CPU; GPU"},
    {"PlaceholderWithDefault", "input:dtype -> output:dtype", "dtype:type; shape:shape",
     "CPU; GPU dtype{$device}; GPU dtype{int32}@*"},
    {"Const", "-> output:dtype", "value:tensor; dtype:type",
     "CPU; GPU dtype{$device}; GPU dtype{int32}@*"},
    // Moving.
    {"Identity", "input:T -> output:T", "T:type", kMove},
    {"IdentityN", "input:[T] -> output:[T]", "T:list(type)>=1", "CPU; GPU"},
    {"NoOp", "->", "", "CPU; GPU"},
    {"_Send", "tensor:T ->", kSendAttrs, "CPU; GPU", true},
    {"_Recv", "-> tensor:tensor_type", kRecvAttrs, "CPU; GPU", true},
    {"_HostSend", "tensor:T ->", kSendAttrs, "CPU; GPU@tensor", true},
    {"_HostRecv", "-> tensor:tensor_type", kRecvAttrs, "CPU; GPU@tensor", true},
    // Shapes.
    {"Fill", "dims:index_type value:T -> output:T", "T:type; index_type:type{int32 int64}=int32",
     "CPU T{$number bool string}; GPU T{half bfloat16 float double uint8 int8 uint16 int16 int64 "
     "bool complex64 complex128}@dims; GPU T{int32}@*"},
    {"Reshape", "tensor:T shape:Tshape -> output:T", "T:type; Tshape:type{int32 int64}=int32",
     "CPU; GPU T{$device}@shape; GPU T{int32}@*"},
    {"Shape", "input:T -> output:out_type", "T:type; out_type:type{int32 int64}=int32", kShapeOf},
    {"Rank", "input:T -> output:int32", "T:type", kShapeOf},
    {"Range", "start:Tidx limit:Tidx delta:Tidx -> output:Tidx",
     "Tidx:type{bfloat16 half float double int8 int16 int32 int64 uint16 uint32}=int32",
     "CPU Tidx{float double int32 int64}"},
    {"Pack", "values:N*T -> output:T", "N:int>=1; T:type; axis:int=0", kAnyHostTensor},
    {"Unpack", "value:T -> output:num*T", "num:int>=0; T:type; axis:int=0", kAnyHostTensor},
    {"ConcatV2", "values:N*T axis:Tidx -> output:T",
     "N:int>=2; T:type; Tidx:type{int32 int64}=int32", kAnyHostTensor},
    {"Split", "split_dim:int32 value:T -> output:num_split*T", "num_split:int>=1; T:type",
     kAnyHostTensor},
    {"Slice", "input:T begin:Index size:Index -> output:T", "T:type; Index:type{int32 int64}",
     kAnyHostTensor},
    {"Transpose", "x:T perm:Tperm -> y:T", "T:type; Tperm:type{int32 int64}=int32", kAnyHostTensor},
    {"ExpandDims", "input:T dim:Tdim -> output:T", "T:type; Tdim:type{int32 int64}=int32",
     "CPU; GPU T{$device}@dim; GPU T{int32}@*"},
    {"Squeeze", "input:T -> output:T", "T:type; squeeze_dims:list(int)>=0=", kMove},
    {"ZerosLike", "x:T -> y:T", "T:type",
     "CPU T{$number bool string}; GPU T{half bfloat16 float double int64 bool complex64 "
     "complex128}; GPU T{int32}@*"},
    {"OnesLike", "x:T -> y:T", "T:type{$number bool}",
     "CPU T{$number bool}; GPU T{half bfloat16 float double int64 bool complex64 complex128}; GPU "
     "T{int32}@*"},
    // Arithmetic.
    {"Cast", "x:SrcT -> y:DstT", "SrcT:type; DstT:type; Truncate:bool=false",
     "CPU; GPU SrcT{half bfloat16 float double uint8 int8 uint16 int16 uint32 int32 uint64 int64 "
     "bool}"},
    {"Add", "x:T y:T -> z:T", "T:type{$real uint8 int8 int16 int32 int64 $complex string}",
     "CPU T{$real uint8 int8 int16 int32 int64 $complex string}; GPU T{half bfloat16 float double "
     "int64}; GPU T{int32}@*"},
    {"AddV2", "x:T y:T -> z:T", "T:type{$number}", kArithmetic},
    {"AddN", "inputs:N*T -> sum:T", "N:int>=1; T:type{$number $quantized variant}", kArithmetic},
    {"Sub", "x:T y:T -> z:T", "T:type{$number}", kArithmetic},
    {"Mul", "x:T y:T -> z:T", "T:type{$number}", kArithmetic},
    {"RealDiv", "x:T y:T -> z:T", "T:type{$number}",
     "CPU T{$real $complex}; GPU T{half bfloat16 float double}"},
    {"Maximum", "x:T y:T -> z:T", "T:type{$real $integer}", kRealArithmetic},
    {"Minimum", "x:T y:T -> z:T", "T:type{$real $integer}", kRealArithmetic},
    {"Neg", "x:T -> y:T", "T:type{$real int8 int16 int32 int64 $complex}",
     "CPU T{$real int8 int16 int32 int64 $complex}; GPU T{half bfloat16 float double int64}; GPU "
     "T{int32}@*"},
    {"Sqrt", "x:T -> y:T", "T:type{$real $complex}",
     "CPU T{$real $complex}; GPU T{half bfloat16 float double}"},
    {"MatMul", "a:T b:T -> product:T",
     "transpose_a:bool=false; transpose_b:bool=false; T:type{$real int32 int64 uint8 uint16 uint32 "
     "uint64 $complex}",
     "CPU T{$real int32 int64 $complex}"},
    {"Sum", "input:T reduction_indices:Tidx -> output:T", kReductionAttrs, "CPU T{$number}"},
    {"Mean", "input:T reduction_indices:Tidx -> output:T", kReductionAttrs, "CPU T{$number}"},
    {"Max", "input:T reduction_indices:Tidx -> output:T", kOrderedReductionAttrs,
     "CPU T{$real $integer}"},
    {"Min", "input:T reduction_indices:Tidx -> output:T", kOrderedReductionAttrs,
     "CPU T{$real $integer}"},
    // Chance.
    {"RandomUniform", "shape:T -> output:dtype", kRandomAttrs, "CPU", true},
    {"RandomStandardNormal", "shape:T -> output:dtype", kRandomAttrs, "CPU", true},
    // Variables.
    {"VarHandleOp", "-> resource:resource",
     "container:string=; shared_name:string=; debug_name:string=; dtype:type; shape:shape; "
     "allowed_devices:list(string)=",
     "CPU; GPU dtype{$device}", true},
    {"AssignVariableOp", "resource:resource value:dtype ->",
     "dtype:type; validate_shape:bool=false", "CPU dtype{$number bool string}; GPU dtype{$device}",
     true},
    {"AssignAddVariableOp", "resource:resource value:dtype ->", "dtype:type",
     "CPU dtype{$number}; GPU dtype{half bfloat16 float double int64}", true},
    {"ReadVariableOp", "resource:resource -> value:dtype", "dtype:type", "CPU; GPU dtype{$device}",
     true},
    {"VarIsInitializedOp", "resource:resource -> is_initialized:bool", "",
     "CPU; GPU@is_initialized", true},
    // Collectives. Group and instance are inputs from the second version on.
    {"CollectiveReduceV2",
     "input:T group_size:int32 group_key:int32 instance_key:int32 "
     "ordering_token:Nordering_token*resource -> data:T",
     "T:type{bfloat16 float half double int32 int64}; merge_op:string{Min Max Mul Add}; "
     "final_op:string{Id Div}; communication_hint:string=auto; timeout_seconds:float=0; "
     "is_stateless:bool=false; Nordering_token:int>=0=0; max_subdivs_per_device:int=-1",
     kGroupInputKernels, true},
    {"CollectiveGatherV2",
     "input:T group_size:int32 group_key:int32 instance_key:int32 "
     "ordering_token:Nordering_token*resource -> data:T",
     "T:type{float half double int32 int64}; communication_hint:string=auto; "
     "timeout_seconds:float=0; is_stateless:bool=false; Nordering_token:int>=0=0",
     kGroupInputKernels, true},
    {"CollectiveBcastSendV2",
     "input:T group_size:int32 group_key:int32 instance_key:int32 -> data:T",
     "T:type{bool float half double int32 int64}; communication_hint:string=auto; "
     "timeout_seconds:float=0",
     kGroupInputKernels, true},
    {"CollectiveBcastRecvV2",
     "group_size:int32 group_key:int32 instance_key:int32 shape:Tshape -> data:T",
     "T:type{bool float half double int32 int64}; Tshape:type{int32 int64}=int32; "
     "communication_hint:string=auto; timeout_seconds:float=0",
     "CPU; GPU T{$device}@group_size,group_key,instance_key,shape; GPU T{int32}@*", true},
    {"CollectiveReduce", "input:T -> data:T",
     "T:type{bfloat16 float half double int32 int64}; group_size:int; group_key:int; "
     "instance_key:int; merge_op:string{Min Max Mul Add}; final_op:string{Id Div}; "
     "subdiv_offsets:list(int); wait_for:list(int)=; communication_hint:string=auto; "
     "timeout_seconds:float=0",
     kGroupKernels, true},
    {"CollectiveGather", "input:T -> data:T",
     "T:type{float half double int32 int64}; group_size:int; group_key:int; instance_key:int; "
     "shape:shape; communication_hint:string=auto; timeout_seconds:float=0",
     kGroupKernels, true},
    {"CollectiveBcastSend", "input:T -> data:T", kGroupAttrs, kGroupKernels, true},
    {"CollectiveBcastRecv", "-> data:T", kGroupAttrs, kGroupKernels, true},
};

}  // namespace

absl::Span<const OpRow> OpRows() { return kRows; }

}  // namespace ferry::graph
