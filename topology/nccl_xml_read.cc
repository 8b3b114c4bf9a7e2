// SPDX-License-Identifier: Apache-2.0
// Reading NCCL's topology XML: structure first, then elements and values, each error with its
// place.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "pugixml.hpp"

#include "base/status_macros.h"
#include "topology/nccl_xml.h"
#include "topology/nccl_xml_schema.h"
#include "topology/pci_bus_id.h"
#include "topology/xml_outline.h"

namespace ferry {
namespace {

constexpr size_t kShownBytes = 60;  // of foreign text in a message
constexpr size_t kMaxIgnored = kMaxNcclXmlElements;

std::string Shown(absl::string_view text) { return absl::CEscape(text.substr(0, kShownBytes)); }

// One use per file.
class Reader final {
 public:
  explicit Reader(XmlOutline outline) : outline_(std::move(outline)) {}

  absl::StatusOr<NcclTopology> Run(absl::string_view text) {
    pugi::xml_document document;
    const pugi::xml_parse_result result =
        document.load_buffer(text.data(), text.size(), pugi::parse_default, pugi::encoding_utf8);
    if (!result) {
      const XmlTag* tag = outline_.TagAt(static_cast<size_t>(result.offset));
      return absl::InvalidArgumentError(absl::StrCat("line ", tag == nullptr ? 1 : tag->line, ": <",
                                                     tag == nullptr ? "" : Shown(tag->name),
                                                     ">: ", result.description()));
    }
    const pugi::xml_node root = document.document_element();
    if (absl::string_view(root.name()) != "system") {
      return Error(root, absl::StrCat("a topology file begins with <system>",
                                      absl::string_view(root.name()) == "graphs"
                                          ? "; this is one of NCCL's graph files"
                                          : ""));
    }
    FERRY_RETURN_IF_ERROR(
        Element(root, NcclElementSpecOf(NcclElementKind::kSystem), "", topology_.system));
    if (topology_.system.NumberOr("version", 0) != 1) {
      return Error(root, "version must be 1, the only one that NCCL reads");
    }
    return std::move(topology_);
  }

 private:
  // Fills `element` from `node`. Recursion is as deep as the outline's limit allows.
  //   ancestors: bus ids of the pci elements around, each in '/'.
  absl::Status Element(const pugi::xml_node& node, const NcclElementSpec& spec,
                       const std::string& ancestors, NcclElement& element) {
    element.kind = spec.kind;
    element.line = Line(node);
    FERRY_RETURN_IF_ERROR(Attributes(node, spec, element));
    std::string path = ancestors;
    if (spec.kind == NcclElementKind::kPci) {
      FERRY_ASSIGN_OR_RETURN(path, BusId(node, element, ancestors));
    }
    if (spec.kind == NcclElementKind::kCpu) FERRY_RETURN_IF_ERROR(Cpu(node, element));
    for (const pugi::xml_node& child : node.children()) {
      const NcclElementSpec* child_spec = FindNcclElement(child.name());
      if (child_spec == nullptr) {
        Ignore(child, "");
        continue;
      }
      if (!IsNcclChild(spec.kind, child_spec->kind)) {
        return Error(
            child, absl::StrCat("stands in ", Tag(node), ", but belongs in ", child_spec->parents));
      }
      FERRY_RETURN_IF_ERROR(Element(child, *child_spec, path, element.children.emplace_back()));
    }
    return absl::OkStatus();
  }

  absl::Status Attributes(const pugi::xml_node& node, const NcclElementSpec& spec,
                          NcclElement& element) {
    // Duplicates count towards the limit too.
    size_t count = 0;
    for (const pugi::xml_attribute& attribute : node.attributes()) {
      const absl::string_view name = attribute.name();
      const absl::string_view value = attribute.value();
      if (std::max(name.size(), value.size()) > kMaxNcclXmlTextBytes) {
        return TooMuch(node, absl::StrCat("attribute ", Shown(name), " is longer than the ",
                                          kMaxNcclXmlTextBytes, " bytes that NCCL reads"));
      }
      // NCCL ignores attributes beyond its capacity, and uses the first of several with the same
      // name.
      if (++count > kMaxNcclXmlAttributes) {
        Ignore(node, absl::StrCat("attribute ", Shown(name), ", after the first ",
                                  kMaxNcclXmlAttributes));
        continue;
      }
      if (element.Attribute(name).has_value()) {
        Ignore(node, absl::StrCat("duplicate attribute ", Shown(name)));
        continue;
      }
      element.attributes.push_back({std::string(name), std::string(value)});
    }
    for (const NcclAttributeSpec& attribute : spec.attributes) {
      const std::optional<absl::string_view> value = element.Attribute(attribute.name);
      if (!value.has_value()) {
        if (!attribute.required) continue;
        return Error(node, absl::StrCat("attribute ", attribute.name, " is missing"));
      }
      const std::optional<absl::string_view> fault = CheckNcclValue(attribute, *value);
      if (!fault.has_value()) continue;
      return Error(node,
                   absl::StrCat("attribute ", attribute.name, "=\"", Shown(*value), "\" ", *fault));
    }
    return absl::OkStatus();
  }

  // Bus ids are identities: one that comes again would make the tree a graph, perhaps with a cycle.
  absl::StatusOr<std::string> BusId(const pugi::xml_node& node, const NcclElement& element,
                                    const std::string& ancestors) {
    const std::string bus_id = *NormalizePciBusId(*element.Attribute("busid"));
    const auto [first, is_new] = pci_lines_.try_emplace(absl::StrCat(host_, bus_id), element.line);
    if (!is_new) {
      const bool cyclic = ancestors.find(absl::StrCat("/", bus_id, "/")) != std::string::npos;
      return Error(node, absl::StrCat(cyclic ? "is inside itself: its bus id is that of line "
                                             : "has the same bus id as line ",
                                      first->second));
    }
    return absl::StrCat(ancestors, "/", bus_id, "/");
  }

  absl::Status Cpu(const pugi::xml_node& node, const NcclElement& element) {
    host_ = absl::StrCat(element.Attribute("host_hash").value_or(""), "/");
    const int numa_node = element.NumberOr("numaid", -1);
    const auto [first, is_new] =
        cpu_lines_.try_emplace(absl::StrCat(host_, numa_node), element.line);
    if (is_new) return absl::OkStatus();
    return Error(node, absl::StrCat("has the same numaid as line ", first->second));
  }

  int Line(const pugi::xml_node& node) const {
    const XmlTag* tag = outline_.TagAt(static_cast<size_t>(node.offset_debug()));
    return tag == nullptr ? 1 : tag->line;
  }

  // <pci busid="0000:19:00.0">, or the plain tag of elements without identity.
  static std::string Tag(const pugi::xml_node& node) {
    for (const char* name : {"busid", "numaid", "dev", "target"}) {
      const pugi::xml_attribute attribute = node.attribute(name);
      if (!attribute) continue;
      return absl::StrCat("<", Shown(node.name()), " ", name, "=\"", Shown(attribute.value()),
                          "\">");
    }
    return absl::StrCat("<", Shown(node.name()), ">");
  }

  // The limits on files allow a million of them.
  void Ignore(const pugi::xml_node& node, absl::string_view what) {
    if (topology_.ignored.size() >= kMaxIgnored) return;
    topology_.ignored.push_back(
        absl::StrCat("line ", Line(node), ": ", Tag(node), what.empty() ? "" : ": ", what));
  }

  absl::Status Error(const pugi::xml_node& node, absl::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat("line ", Line(node), ": ", Tag(node), ": ", what));
  }

  absl::Status TooMuch(const pugi::xml_node& node, absl::string_view what) const {
    return absl::ResourceExhaustedError(
        absl::StrCat("line ", Line(node), ": ", Tag(node), ": ", what));
  }

  const XmlOutline outline_;
  NcclTopology topology_;
  std::string host_;  // of the cpu element being read
  absl::flat_hash_map<std::string, int> pci_lines_;
  absl::flat_hash_map<std::string, int> cpu_lines_;
};

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

}  // namespace

absl::StatusOr<NcclTopology> ReadNcclXml(absl::string_view text) {
  FERRY_ASSIGN_OR_RETURN(
      XmlOutline outline,
      OutlineXml(text, XmlLimits{kMaxNcclXmlBytes, kMaxNcclXmlElements, kMaxNcclXmlDepth}));
  return Reader(std::move(outline)).Run(text);
}

absl::StatusOr<NcclTopology> ReadNcclXmlFile(const std::string& path) {
  const std::unique_ptr<std::FILE, FileCloser> file(std::fopen(path.c_str(), "rb"));
  if (file == nullptr) {
    return absl::NotFoundError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  // One byte more than the limit, so that a longer file, or an endless one, is seen to be too long.
  std::string text(kMaxNcclXmlBytes + 1, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  if (std::ferror(file.get()) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  absl::StatusOr<NcclTopology> topology = ReadNcclXml(text);
  if (topology.ok()) return topology;
  return absl::Status(topology.status().code(),
                      absl::StrCat(path, ": ", topology.status().message()));
}

}  // namespace ferry
