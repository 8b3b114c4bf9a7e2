# SPDX-License-Identifier: Apache-2.0
"""One of two processes, each with a GPU of the emulated driver, that exchange tensors in their memory. gpu_test.py runs them.

The driver's own functions fill and read the memory, as an array package would."""
import array
import ctypes
import os

import ferry

DRIVER = ctypes.CDLL(os.environ["FERRY_CUDA_LIBRARY"])


def call(name, *arguments):
    result = getattr(DRIVER, name)(*arguments)
    if result != 0:
        raise AssertionError(f"{name} returned {result}")


def open_gpu():
    call("cuInit", 0)
    context = ctypes.c_void_p()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)


def write(tensor, data):
    call("cuMemcpyHtoD_v2", ctypes.c_void_p(tensor.data_ptr), data, ctypes.c_size_t(len(data)))


def read(tensor):
    data = ctypes.create_string_buffer(tensor.nbytes)
    call("cuMemcpyDtoH_v2", data, ctypes.c_void_p(tensor.data_ptr), ctypes.c_size_t(tensor.nbytes))
    return data.raw


class CudaArray:
    """An array of a package that has the CUDA array interface alone."""

    def __init__(self, tensor):
        self.tensor = tensor
        self.nbytes = tensor.nbytes
        self.data_ptr = tensor.data_ptr

    @property
    def __cuda_array_interface__(self):
        return {**self.tensor.__cuda_array_interface__, "data": (self.data_ptr, False)}


def exchange(node, peer):
    with node.step(1) as step:
        mine = node.empty((2, 2), "float32", device="cuda:0")
        assert mine.__dlpack_device__() == (2, 0) and mine.device == "cuda:0", mine
        write(mine, array.array("f", [node.rank + 1] * 4).tobytes())
        step.send(mine, "small", to=peer)
        theirs = step.recv("small", source=peer, device="cuda:0")
        assert theirs.shape == (2, 2) and theirs.device == "cuda:0", theirs
        assert array.array("f", read(theirs)).tolist() == [peer + 1] * 4

        size = 1 << 20
        big = node.empty(size, "uint8", device="cuda:0")
        write(big, bytes([node.rank + 7]) * size)
        receiving = step.irecv("big", source=peer, device="cuda:0", require="cuda_ipc")
        sending = step.isend(big, "big", to=peer)
        received = receiving.wait()
        sending.wait()
        assert receiving.path.startswith("cuda_ipc"), receiving.path
        assert read(received) == bytes([peer + 7]) * size

        # Out of one memory of the program into another, by the interface of CuPy and others.
        out = CudaArray(node.empty(size, "uint8", device="cuda:0"))
        sending = step.isend(CudaArray(big), "array", to=peer)
        assert step.recv("array", source=peer, out=out) is out
        assert read(out) == bytes([peer + 7]) * size
        sending.wait()
        assert sending.buffer_released

        # Between the host and a GPU: both sides name the same devices.
        step.send(b"host" * 4, "to gpu", to=(peer, "cuda:0"))
        from_host = step.recv("to gpu", source=(peer, "cpu"), device="cuda:0")
        assert read(from_host) == b"host" * 4
        step.send(from_host, "to host", to=(peer, "cpu"))
        assert step.recv("to host", source=(peer, "cuda:0"), device="cpu").tobytes() == b"host" * 4

        # The buffer protocol is for the host.
        for view in (memoryview, bytes):
            try:
                view(received)
            except (BufferError, TypeError):
                continue
            raise AssertionError(f"{view} of a GPU's memory")


def all_reduce(node):
    gpus = [device.global_id for device in node.topology.devices if device.device == "cuda:0"]
    with node.communicator(gpus) as communicator:
        assert (communicator.rank, communicator.size, communicator.device) == (node.rank, 2, "cuda:0")
        tensor = node.empty(4, "float32", device="cuda:0")
        write(tensor, array.array("f", [node.rank + 1] * 4).tobytes())
        communicator.all_reduce(tensor, stream=communicator.stream)
        call("cuStreamSynchronize", ctypes.c_void_p(communicator.stream))
        assert array.array("f", read(tensor)).tolist() == [3.0] * 4
        gathered = node.empty(8, "float32", device="cuda:0")
        communicator.all_gather(tensor, gathered, stream=communicator.stream)
        communicator.broadcast(tensor, root=1, stream=communicator.stream)
        call("cuStreamSynchronize", ctypes.c_void_p(communicator.stream))
        assert array.array("f", read(gathered)).tolist() == [3.0] * 8
        communicator.check()
    try:
        communicator.check()
    except ferry.FerryError as error:
        assert "released" in str(error), error
    else:
        raise AssertionError("a released communicator was used")


def main():
    with ferry.join(timeout=60) as node:
        open_gpu()
        exchange(node, 1 - node.rank)
        all_reduce(node)
        node.barrier("end")
    print("the job is done")


if __name__ == "__main__":
    main()
