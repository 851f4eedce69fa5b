"""The structs of kernels/surefoot.h, field by field."""

from __future__ import annotations

from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_void_p

MAX_PARTS = 3


class SfMatrix(Structure):
    _fields_ = (
        ("format", c_int32),
        ("outputs", c_int32),
        ("inputs", c_int32),
        ("data", c_void_p),
    )


class SfLinear(Structure):
    _fields_ = (("parts", c_int32), ("part", SfMatrix * MAX_PARTS), ("bias", c_void_p))


class SfLayer(Structure):
    _fields_ = (
        ("attention_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("attention_post_norm", c_void_p),
        ("mlp_post_norm", c_void_p),
        ("qkv", SfLinear),
        ("output", SfLinear),
        ("gate_up", SfLinear),
        ("down", SfLinear),
        ("window", c_int32),
        ("rope", c_int32),
    )


class SfModel(Structure):
    _fields_ = (
        ("layers", c_int32),
        ("hidden", c_int32),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("intermediate", c_int32),
        ("vocabulary", c_int32),
        ("activation", c_int32),
        ("norm_eps", c_float),
        ("attention_scale", c_float),
        ("layer", POINTER(SfLayer)),
        ("norm", c_void_p),
        ("head", SfLinear),
    )


class SfPass(Structure):
    _fields_ = (
        ("rows", c_int32),
        ("wanted", c_int32),
        ("x", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("slots", c_void_p),
        ("first_key", c_void_p),
        ("num_keys", c_void_p),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("num_slots", c_int64),
        ("key_stride", c_int64),
        ("wanted_rows", c_void_p),
        ("logits", c_void_p),
    )
