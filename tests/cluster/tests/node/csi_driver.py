"""A CSI driver that shares no code with the agent: gRPC's own library for Python, Google's protobuf,
and the messages of CSI 1.1 as protoc generated them for another project, ember-csi.

    csi_driver.py NAME DATA CALLS REFUSAL

It registers by the name NAME below the folder DATA of a machine's volumes. A volume is staged as a
file system in memory, published by a bind mount, and grows. The first staging is refused with the
text REFUSAL. Each call becomes a line of JSON in the file CALLS once it is done: the method, the
request, and the numbers of the fields that the request's message does not have.
"""

import ast
import ctypes
import importlib.util
import json
import os
import sys
from concurrent import futures
from pathlib import Path

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory, unknown_fields

# csi.proto imports these.
from google.protobuf import timestamp_pb2, wrappers_pb2  # noqa: F401

# linux/mount.h
MS_REMOUNT, MS_BIND = 32, 4096
MNT_DETACH = 2

libc = ctypes.CDLL(None, use_errno=True)


def system(name, *arguments):
    """A system call: texts go as UTF-8, and a failure is an exception."""
    encoded = [value.encode() if isinstance(value, str) else value for value in arguments]
    if getattr(libc, name)(*encoded) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}{arguments}: {os.strerror(number)}")


def mount(source, target, kind, flags, options):
    system("mount", source, target, kind, ctypes.c_ulong(flags), options)


def csi():
    """The description of csi.proto. Its module is read and not imported: it was generated for a
    protobuf of 2019, which the present one takes no modules of."""
    package = importlib.util.find_spec("ember_csi").submodule_search_locations[0]
    tree = ast.parse((Path(package) / "v1_1_0" / "csi_pb2.py").read_text())
    words = (node for node in ast.walk(tree) if isinstance(node, ast.keyword))
    return next(ast.literal_eval(word.value) for word in words if word.arg == "serialized_pb")


def registration():
    """The description of kubelet's pluginregistration/v1/api.proto."""
    file = descriptor_pb2.FileDescriptorProto(
        name="registration.proto", package="pluginregistration", syntax="proto3"
    )
    field = descriptor_pb2.FieldDescriptorProto
    text, texts = (field.TYPE_STRING, field.LABEL_OPTIONAL), (field.TYPE_STRING, field.LABEL_REPEATED)
    truth = (field.TYPE_BOOL, field.LABEL_OPTIONAL)
    messages = {
        "InfoRequest": {},
        "PluginInfo": {"type": text, "name": text, "endpoint": text, "supported_versions": texts},
        "RegistrationStatus": {"plugin_registered": truth, "error": text},
        "RegistrationStatusResponse": {},
    }
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for number, (name, (kind, label)) in enumerate(fields.items(), start=1):
            message.field.add(name=name, number=number, type=kind, label=label)
    service = file.service.add(name="Registration")
    calls = [
        ("GetInfo", "InfoRequest", "PluginInfo"),
        ("NotifyRegistrationStatus", "RegistrationStatus", "RegistrationStatusResponse"),
    ]
    for name, request, answer in calls:
        package = f".{file.package}"
        service.method.add(name=name, input_type=f"{package}.{request}", output_type=f"{package}.{answer}")
    return file.SerializeToString()


def unknown(message):
    """The numbers of the fields that a message has and its description has not, also further in."""
    numbers = [field.field_number for field in unknown_fields.UnknownFieldSet(message)]
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for part in value if hasattr(value, "__iter__") else [value]:
                numbers += unknown(part)
    return sorted(numbers)


class Driver:
    """Answers of both services: what a method returns are the fields of its answer."""

    def __init__(self, name, endpoint, refusal):
        self.name, self.endpoint, self.refusal = name, endpoint, refusal
        self.staged = {}
        self.published = {}

    def GetInfo(self, request, context):
        return {
            "type": "CSIPlugin",
            "name": self.name,
            "endpoint": self.endpoint,
            "supported_versions": ["1.1.0"],
        }

    def NotifyRegistrationStatus(self, request, context):
        return {}

    def NodeGetInfo(self, request, context):
        return {"node_id": "node-of-python", "max_volumes_per_node": 3}

    def NodeGetCapabilities(self, request, context):
        kinds = ["STAGE_UNSTAGE_VOLUME", "EXPAND_VOLUME"]
        return {"capabilities": [{"rpc": {"type": kind}} for kind in kinds]}

    def NodeStageVolume(self, request, context):
        if self.refusal is not None:
            refusal, self.refusal = self.refusal, None
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, refusal)
        if request.volume_id not in self.staged:
            mount("driver", request.staging_target_path, "tmpfs", 0, "size=1m")
            self.staged[request.volume_id] = request.staging_target_path
        return {}

    def NodePublishVolume(self, request, context):
        if self.staged.get(request.volume_id) != request.staging_target_path:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "it is not staged there")
        if request.target_path not in self.published:
            os.makedirs(request.target_path, exist_ok=True)
            mount(request.staging_target_path, request.target_path, None, MS_BIND, None)
            self.published[request.target_path] = request.volume_id
        return {}

    def NodeExpandVolume(self, request, context):
        if self.published.get(request.volume_path) != request.volume_id:
            context.abort(grpc.StatusCode.NOT_FOUND, "it is not published there")
        size = request.capacity_range.required_bytes
        mount(None, request.volume_path, None, MS_REMOUNT, f"size={size}")
        return {"capacity_bytes": size}

    def NodeUnpublishVolume(self, request, context):
        if self.published.pop(request.target_path, None) is not None:
            system("umount2", request.target_path, MNT_DETACH)
            os.rmdir(request.target_path)
        return {}

    def NodeUnstageVolume(self, request, context):
        if request.volume_id in self.published.values():
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "it is published")
        if self.staged.pop(request.volume_id, None) is not None:
            system("umount2", request.staging_target_path, MNT_DETACH)
        return {}


def handlers(service, driver, calls):
    """The methods of a service that the driver has, with the messages that the service's
    description names."""

    def handler(method):
        answer = message_factory.GetMessageClass(method.output_type)
        behaviour = getattr(driver, method.name)

        def behave(request, context):
            try:
                return json_format.ParseDict(behaviour(request, context), answer())
            finally:
                told = json_format.MessageToDict(request, preserving_proto_field_name=True)
                line = {"method": method.name, "request": told, "unknown": unknown(request)}
                calls.write(json.dumps(line) + "\n")
                calls.flush()

        request = message_factory.GetMessageClass(method.input_type)
        return grpc.unary_unary_rpc_method_handler(
            behave,
            request_deserializer=request.FromString,
            response_serializer=answer.SerializeToString,
        )

    known = [method for method in service.methods if hasattr(driver, method.name)]
    return grpc.method_handlers_generic_handler(
        service.full_name, {method.name: handler(method) for method in known}
    )


def main(name, data, calls, refusal):
    own = Path(data) / "plugins" / name / "csi.sock"
    register = Path(data) / "plugins_registry" / f"{name}-reg.sock"
    pool = descriptor_pool.Default()
    for file in [csi(), registration()]:
        pool.AddSerializedFile(file)
    driver = Driver(name, str(own), refusal)
    # One thread: the calls come one after another, and so do their lines.
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=1))
    with open(calls, "a", encoding="utf-8") as lines:
        for service in ["csi.v1.Node", "pluginregistration.Registration"]:
            handled = handlers(pool.FindServiceByName(service), driver, lines)
            server.add_generic_rpc_handlers((handled,))
        # The registration last: it is what the agent looks for.
        for path in [own, register]:
            path.parent.mkdir(parents=True, exist_ok=True)
            if server.add_insecure_port(f"unix:{path}") == 0:
                raise OSError(f"cannot listen at {path}")
        server.start()
        server.wait_for_termination()


if __name__ == "__main__":
    main(*sys.argv[1:])
