"""The protobuf messages of OFRecord files, made at run time.

Importing this takes ``pip install 'torch-nn-graph[oneflow]'``.
"""

from __future__ import annotations

from typing import Any

from ...errors import MissingPackage

try:
    from google.protobuf import (  # type: ignore[import-untyped] # stubs are a package of their own
        descriptor_pb2,
        descriptor_pool,
        message,
        message_factory,
    )
except ModuleNotFoundError:
    raise MissingPackage("OFRecord files are protobuf messages: protobuf is needed.") from None

NotAMessage = message.DecodeError

KINDS = {
    "bytes_list": "TYPE_BYTES",
    "float_list": "TYPE_FLOAT",
    "double_list": "TYPE_DOUBLE",
    "int32_list": "TYPE_INT32",
    "int64_list": "TYPE_INT64",
}
"""What a feature may be, in the order of its field numbers, and the type of its values."""

_Field = descriptor_pb2.FieldDescriptorProto


def _described() -> descriptor_pb2.FileDescriptorProto:
    """``oneflow/core/record/record.proto``."""
    file = descriptor_pb2.FileDescriptorProto(
        name="torchgraph/oneflow/_port/record.proto", package="torchgraph.ofrecord", syntax="proto2"
    )
    feature = descriptor_pb2.DescriptorProto(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (kind, values) in enumerate(KINDS.items(), 1):
        name = kind.title().replace("_", "")
        held = file.message_type.add(name=name).field.add(
            name="value", number=1, label=_Field.LABEL_REPEATED, type=_Field.Type.Value(values)
        )
        held.options.packed = kind != "bytes_list"
        if kind == "bytes_list":
            held.ClearField("options")
        _refers(feature, kind, number, name).oneof_index = 0
    file.message_type.append(feature)
    record = file.message_type.add(name="OFRecord")
    entry = record.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(
        name="key", number=1, label=_Field.LABEL_OPTIONAL, type=_Field.Type.Value("TYPE_STRING")
    )
    _refers(entry, "value", 2, "Feature")
    _refers(record, "feature", 1, "OFRecord.FeatureEntry").label = _Field.LABEL_REPEATED
    return file


def _refers(holder: descriptor_pb2.DescriptorProto, name: str, number: int, to: str) -> Any:
    return holder.field.add(
        name=name,
        number=number,
        label=_Field.LABEL_OPTIONAL,
        type=_Field.Type.Value("TYPE_MESSAGE"),
        type_name=f".torchgraph.ofrecord.{to}",
    )


_pool = descriptor_pool.DescriptorPool()
_pool.Add(_described())


def _message(name: str) -> Any:
    found = _pool.FindMessageTypeByName(f"torchgraph.ofrecord.{name}")
    return message_factory.GetMessageClass(found)


OFRecord: Any = _message("OFRecord")
"""``OFRecord.FromString(payload).feature["label"].int32_list.value``"""
Feature: Any = _message("Feature")
BytesList: Any = _message("BytesList")
FloatList: Any = _message("FloatList")
DoubleList: Any = _message("DoubleList")
Int32List: Any = _message("Int32List")
Int64List: Any = _message("Int64List")
