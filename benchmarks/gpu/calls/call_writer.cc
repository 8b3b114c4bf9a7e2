// SPDX-License-Identifier: Apache-2.0
// CallWriter: the text of each kind of argument.
#include "benchmarks/gpu/calls/call_writer.h"

#include <sys/stat.h>

#include <charconv>
#include <cstdio>
#include <string_view>

namespace ferry::calls {
namespace {

// The limit of a text, of the driver or the program, that may not end.
constexpr size_t kMaxText = 1024;
// The limit of a list whose length the program gave.
constexpr uint64_t kMaxListed = 4096;

void AppendNumber(std::string& text, int64_t value) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof(digits), value).ptr;
  text.append(digits, end);
}

void AppendHex(std::string& text, uint64_t value) {
  char digits[20] = {'0', 'x'};
  const auto end = std::to_chars(digits + 2, digits + sizeof(digits), value, 16).ptr;
  text.append(digits, end);
}

void AppendBytes(std::string& text, const void* bytes, size_t count) {
  constexpr char kDigits[] = "0123456789abcdef";
  for (size_t i = 0; i < count; ++i) {
    const unsigned char byte = static_cast<const unsigned char*>(bytes)[i];
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
}

void AppendAddress(std::string& text, Kind kind, uint64_t value) {
  text += PrefixOf(kind);
  text += ':';
  AppendHex(text, value);
}

template <typename T>
T At(uint64_t address) {
  T value;
  std::memcpy(&value, reinterpret_cast<const void*>(address), sizeof(T));
  return value;
}

void AppendField(std::string& text, std::string_view name, int64_t value) {
  if (text.back() != '{') text += ',';
  text += name;
  text += ':';
  AppendNumber(text, value);
}

void AppendLocation(std::string& text, const cuda::MemoryLocation& location) {
  AppendField(text, "location_type", location.type);
  AppendField(text, "location_id", location.id);
}

void AppendAllocation(std::string& text, const cuda::AllocationProperties& properties) {
  text += '{';
  AppendField(text, "type", properties.type);
  AppendField(text, "handle_types", properties.requested_handle_types);
  AppendLocation(text, properties.location);
  AppendField(text, "compression", properties.compression_type);
  AppendField(text, "rdma", properties.gpu_direct_rdma_capable);
  AppendField(text, "usage", properties.usage);
  text += '}';
}

void AppendPool(std::string& text, const cuda::PoolProperties& properties) {
  text += '{';
  AppendField(text, "type", properties.allocation_type);
  AppendField(text, "handle_types", properties.handle_types);
  AppendLocation(text, properties.location);
  AppendField(text, "max_bytes", static_cast<int64_t>(properties.max_bytes));
  AppendField(text, "usage", properties.usage);
  text += '}';
}

void AppendAccess(std::string& text, uint64_t descriptions, uint64_t count) {
  text += '[';
  for (uint64_t i = 0; i < std::min(count, kMaxListed); ++i) {
    const auto description =
        At<cuda::AccessDescription>(descriptions + i * sizeof(cuda::AccessDescription));
    text += i == 0 ? "{" : ",{";
    AppendLocation(text, description.location);
    AppendField(text, "flags", description.flags);
    text += '}';
  }
  text += ']';
}

void AppendAttributes(std::string& text, uint64_t attributes, uint64_t count) {
  text += '[';
  for (uint64_t i = 0; i < std::min(count, kMaxListed); ++i) {
    if (i > 0) text += ',';
    AppendNumber(text, At<int>(attributes + i * sizeof(int)));
  }
  text += ']';
}

void AppendValues(std::string& text, uint64_t values, uint64_t attributes, uint64_t count) {
  text += '[';
  for (uint64_t i = 0; i < std::min(count, kMaxListed); ++i) {
    if (i > 0) text += ',';
    const AttributeShape shape = ShapeOf(At<int>(attributes + i * sizeof(int)));
    const auto value = At<uint64_t>(values + i * sizeof(void*));
    uint64_t word = 0;
    if (shape.kind == Kind::kNone || value == 0) {
      text += '-';
      continue;
    }
    std::memcpy(&word, reinterpret_cast<const void*>(value), shape.bytes);
    if (IsHandle(shape.kind)) {
      AppendAddress(text, shape.kind, word);
    } else {
      AppendNumber(
          text, shape.bytes == sizeof(int) ? static_cast<int>(word) : static_cast<int64_t>(word));
    }
  }
  text += ']';
}

std::string_view FormatOf(uint64_t image) {
  const auto magic = At<uint32_t>(image);
  if (magic == 0x464c457f) return "elf";
  if (magic == 0xba55ed50) return "fatbin";
  return "ptx";
}

// A descriptor with the identity of its file, by which another process's copy of it can be told.
void AppendShareable(std::string& text, bool is_output, int64_t handle_type, uint64_t word) {
  if (handle_type != cuda::kHandleTypePosixFd) {
    text += "bytes:";
    AppendBytes(text, reinterpret_cast<const void*>(word), cuda::kIpcHandleBytes);
    return;
  }
  const int descriptor = is_output ? At<int>(word) : static_cast<int>(word);
  struct stat status = {};
  fstat(descriptor, &status);
  text += "fd:";
  AppendNumber(text, descriptor);
  text += '/';
  AppendNumber(text, static_cast<int64_t>(status.st_dev));
  text += '/';
  AppendNumber(text, static_cast<int64_t>(status.st_ino));
}

int64_t WordNamed(const DoneCall& call, std::string_view name) {
  const int at = FindArgument(*call.description, name);
  return at < 0 ? 0 : static_cast<int64_t>(call.words[at]);
}

}  // namespace

void CallWriter::AppendHeader(std::string& text, int64_t pid, int64_t parent,
                              std::string_view program) {
  text += kRecordMagic;
  AppendNumber(text, kRecordVersion);
  text += "\nprocess ";
  AppendNumber(text, pid);
  text += ' ';
  AppendNumber(text, parent);
  text += ' ';
  AppendQuoted(text, program);
  text += '\n';
}

// Neither spaces nor line feeds are left: a line is split at spaces.
void CallWriter::AppendQuoted(std::string& text, std::string_view value) {
  text += '"';
  for (const char c : value) {
    if (c > ' ' && c < 0x7f && c != '"' && c != '\\') {
      text += c;
    } else {
      text += "\\x";
      AppendBytes(text, &c, 1);
    }
  }
  text += '"';
}

void CallWriter::AppendKernelParameters(std::string& text, const DoneCall& call, size_t i) {
  const KernelShape* shape = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = functions_.find(static_cast<uint64_t>(WordNamed(call, "function")));
    if (found != functions_.end()) shape = found->second;
  }
  if (shape == nullptr) {
    text += '-';
    return;
  }
  text += '[';
  for (size_t k = 0; k < std::size(shape->bytes) && shape->bytes[k] > 0; ++k) {
    if (k > 0) text += ',';
    text += "bytes:";
    AppendBytes(text,
                reinterpret_cast<const void*>(At<uint64_t>(call.words[i] + k * sizeof(void*))),
                shape->bytes[k]);
  }
  text += ']';
}

void CallWriter::AppendArgument(std::string& text, const DoneCall& call, size_t i) {
  const Argument& argument = call.description->arguments[i];
  const uint64_t word = call.words[i];
  text += ' ';
  text += argument.name;
  text += '=';
  const bool is_plain = argument.kind == Kind::kInt || argument.kind == Kind::kSize ||
                        IsHandle(argument.kind) || IsAddress(argument.kind) ||
                        argument.kind == Kind::kShareable;
  if (word == 0 && (argument.is_output || !is_plain)) {
    text += '-';
    return;
  }
  switch (argument.kind) {
    case Kind::kInt:
      return AppendNumber(text, argument.is_output ? At<int>(word) : static_cast<int64_t>(word));
    case Kind::kSize:
      return AppendNumber(text, static_cast<int64_t>(argument.is_output ? At<size_t>(word) : word));
    case Kind::kFloat: {
      char digits[32];
      std::snprintf(digits, sizeof(digits), "%.9g", static_cast<double>(At<float>(word)));
      text += digits;
      return;
    }
    case Kind::kContext:
    case Kind::kStream:
    case Kind::kEvent:
    case Kind::kModule:
    case Kind::kFunction:
    case Kind::kPool:
    case Kind::kAllocation:
    case Kind::kMemory:
    case Kind::kHost:
      return AppendAddress(text, argument.kind, argument.is_output ? At<uint64_t>(word) : word);
    case Kind::kText: {
      const char* const value = reinterpret_cast<const char*>(word);
      size_t limit = kMaxText;
      if (argument.is_output) {
        limit =
            std::min(limit, static_cast<size_t>(std::max(int64_t{0}, WordNamed(call, "bytes"))));
      }
      return AppendQuoted(text, std::string_view(value, strnlen(value, limit)));
    }
    case Kind::kTextPointer: {
      const char* const value = reinterpret_cast<const char*>(At<uint64_t>(word));
      if (value == nullptr) {
        text += '-';
        return;
      }
      return AppendQuoted(text, std::string_view(value, strnlen(value, kMaxText)));
    }
    case Kind::kImage:
      return AppendQuoted(text, FormatOf(word));
    case Kind::kAllocationProperties:
      return AppendAllocation(text, At<cuda::AllocationProperties>(word));
    case Kind::kPoolProperties:
      return AppendPool(text, At<cuda::PoolProperties>(word));
    case Kind::kAccess:
      return AppendAccess(text, word, call.words[i + 1]);
    case Kind::kAttributes:
      return AppendAttributes(text, word, call.words[i - 1]);
    case Kind::kValues:
      return AppendValues(text, word, call.words[i - 1], call.words[i - 2]);
    case Kind::kPoolValue:
      return AppendNumber(text, WordNamed(call, "attribute") < cuda::kPoolReleaseThreshold
                                    ? At<int>(word)
                                    : At<int64_t>(word));
    case Kind::kBlob:
      text += "bytes:";
      return AppendBytes(text, reinterpret_cast<const void*>(word), cuda::kIpcHandleBytes);
    case Kind::kUuid:
      text += "bytes:";
      return AppendBytes(text, reinterpret_cast<const void*>(word), sizeof(cuda::Uuid));
    case Kind::kShareable:
      return AppendShareable(text, argument.is_output, WordNamed(call, "handle_type"), word);
    case Kind::kKernelParameters:
      return AppendKernelParameters(text, call, i);
    case Kind::kNone:
    case Kind::kIgnored:
      text += '-';
      return;
  }
}

void CallWriter::Note(const DoneCall& call) {
  constexpr int kGetFunction = FindDriverCall("cuModuleGetFunction");
  if (call.description != &kDriverCalls[kGetFunction] || call.result != cuda::kSuccess) return;
  const KernelShape* const shape = FindKernelShape(reinterpret_cast<const char*>(call.words[2]));
  const std::lock_guard<std::mutex> lock(mutex_);
  functions_[At<uint64_t>(call.words[0])] = shape;
}

void CallWriter::Append(std::string& text, const DoneCall& call) {
  Note(call);
  AppendNumber(text, call.began_ns);
  text += ' ';
  AppendNumber(text, call.thread);
  text += ' ';
  text += call.description->symbol;
  for (size_t i = 0; i < call.description->count; ++i) {
    if (!call.description->arguments[i].is_output) AppendArgument(text, call, i);
  }
  text += " = ";
  AppendNumber(text, call.result);
  text += ' ';
  AppendNumber(text, call.duration_ns);
  for (size_t i = 0; i < call.description->count; ++i) {
    if (call.description->arguments[i].is_output && call.result == cuda::kSuccess) {
      AppendArgument(text, call, i);
    }
  }
  text += '\n';
}

}  // namespace ferry::calls
