// SPDX-License-Identifier: Apache-2.0
// Reads NCCL's topology XML: structure first, then elements and values, each error with its line.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "pugixml.hpp"

#include "base/status_macros.h"
#include "topology/nccl_xml.h"
#include "topology/nccl_xml_schema.h"
#include "topology/pci_bus_id.h"

namespace ferry {
namespace {

constexpr size_t kShownBytes = 60;  // of foreign text in a message
constexpr size_t kShownNameBytes = 40;
constexpr size_t kMaxIgnored = kMaxNcclXmlElements;

constexpr std::array<std::pair<absl::string_view, absl::string_view>, 5> kEntities = {
    {{"&amp;", "&"}, {"&lt;", "<"}, {"&gt;", ">"}, {"&quot;", "\""}, {"&apos;", "'"}}};

constexpr absl::string_view kCdata = "a CDATA section, where only elements go";
constexpr absl::string_view kDocumentType =
    "a document type or entity declaration, which topology files may not have";
constexpr absl::string_view kLess = "'<' before the tag ends";
constexpr absl::string_view kAmpersand = "'&' that is none of &amp; &lt; &gt; &quot; &apos;";

std::string Shown(absl::string_view text) { return absl::CEscape(text.substr(0, kShownBytes)); }

// "<cpu>": for an element that may have any name.
std::string ShownName(absl::string_view name) {
  return absl::StrCat("<", absl::CEscape(name.substr(0, kShownNameBytes)), ">");
}

bool IsEntity(absl::string_view text) {
  return std::any_of(kEntities.begin(), kEntities.end(),
                     [text](const auto& entity) { return absl::StartsWith(text, entity.first); });
}

// REQUIRES: only predefined entities.
std::string WithoutEntities(absl::string_view value) {
  return absl::StrReplaceAll(value, kEntities);
}

// Returns the offset of the element behind the first `max_elements`, or the end. Tags in comments
// count too.
size_t FindElementLimit(absl::string_view text, size_t max_elements) {
  size_t count = 0;
  for (size_t at = text.find('<'); at < text.size(); at = text.find('<', at + 1)) {
    const char next = at + 1 < text.size() ? text[at + 1] : '/';
    if (next == '/' || next == '!' || next == '?') continue;
    if (count++ == max_elements) return at;
  }
  return text.size();
}

// Accepts one element with properly nested elements and otherwise only comments and processing
// instructions: no document type, no entities beyond the five predefined ones, no text. The parser
// is more lenient and its errors say less, so its tree, partial after an error, is checked here.
// The tree's memory is linear in the text, and neither the parser nor this code recurses.
class XmlDocument final {
 public:
  // `text` outlives it.
  explicit XmlDocument(absl::string_view text) : text_(text) {}

  //   Errors: INVALID_ARGUMENT beginning with "line N: <element>"; RESOURCE_EXHAUSTED above a
  //   limit.
  absl::Status Parse() {
    if (text_.size() > kMaxNcclXmlBytes) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "the file has ", text_.size(), " bytes, at most ", kMaxNcclXmlBytes, " are read"));
    }
    if (const size_t zero = text_.find('\0'); zero != absl::string_view::npos) {
      return Error(zero, "a zero byte: this is no UTF-8 text");
    }
    // Checked before a tree of them is built.
    const size_t limit = FindElementLimit(text_, kMaxNcclXmlElements);
    // Entities in values are kept, and forbidden nodes are kept in the tree to be reported.
    constexpr unsigned kOptions = pugi::parse_cdata | pugi::parse_doctype | pugi::parse_fragment |
                                  pugi::parse_eol | pugi::parse_wconv_attribute;
    const pugi::xml_parse_result result =
        document_.load_buffer(text_.data(), limit, kOptions, pugi::encoding_utf8);
    // Errors in the parsed part come before the point where the parser failed.
    FERRY_RETURN_IF_ERROR(CheckTree());
    const auto failed_at = static_cast<size_t>(std::max<ptrdiff_t>(result.offset, 0));
    // The last byte stands for the end.
    if (limit < text_.size() && (result || failed_at + 1 >= limit)) {
      const absl::string_view rest = text_.substr(limit + 1);
      return TooMuch(limit,
                     absl::StrCat(ShownName(rest.substr(0, rest.find_first_of(" \t\r\n/><"))),
                                  ": more than ", kMaxNcclXmlElements, " elements"));
    }
    if (!result) return ParseError(result, failed_at);
    if (!last_) return Error(text_.size(), "the file holds no element");
    return absl::OkStatus();
  }

  pugi::xml_node root() const { return document_.document_element(); }

  // The line of an element.
  int Line(const pugi::xml_node& node) const { return LineAt(Offset(node)); }

 private:
  // The end of a tag, or its first error.
  struct TagEnd {
    // The offset after its '>'.
    size_t end = 0;
    // Empty if no error is visible here.
    absl::string_view fault;
  };

  absl::Status CheckTree() {
    int depth = 1;
    for (pugi::xml_node node = document_.first_child(); node;) {
      FERRY_RETURN_IF_ERROR(CheckNode(node, depth));
      if (node.first_child()) {
        node = node.first_child();
        ++depth;
        continue;
      }
      while (node != document_ && !node.next_sibling()) {
        node = node.parent();
        --depth;
      }
      if (node == document_) break;
      node = node.next_sibling();
    }
    return absl::OkStatus();
  }

  absl::Status CheckNode(const pugi::xml_node& node, int depth) {
    switch (node.type()) {
      case pugi::node_element:
        break;
      case pugi::node_pcdata: {
        const absl::string_view value = node.value();
        const absl::string_view text = absl::StripLeadingAsciiWhitespace(value);
        if (text.empty()) return absl::OkStatus();
        return Error(Offset(node) + (value.size() - text.size()),
                     absl::StrCat("text \"", Shown(text), "\" between the elements"));
      }
      case pugi::node_cdata:
        return Error(Offset(node), kCdata);
      default:
        return Error(Offset(node), kDocumentType);
    }
    if (depth == 1 && last_) {
      return Error(Offset(node),
                   absl::StrCat(ShownName(node.name()), " after the end of ",
                                ShownName(root().name()), ": a file has one outermost element"));
    }
    if (depth > kMaxNcclXmlDepth) {
      return TooMuch(Offset(node), absl::StrCat(ShownName(node.name()), ": nested more than ",
                                                kMaxNcclXmlDepth, " deep"));
    }
    last_ = node;
    for (const pugi::xml_attribute& attribute : node.attributes()) {
      const absl::string_view value = attribute.value();
      for (size_t i = value.find_first_of("<&"); i < value.size();
           i = value.find_first_of("<&", i + 1)) {
        if (value[i] == '&' && IsEntity(value.substr(i))) continue;
        // Both point into the parser's copy of the text.
        const auto distance = static_cast<size_t>(value.data() - node.name());
        return TagError(node, Offset(node) + distance + i, value[i] == '&' ? kAmpersand : kLess);
      }
    }
    return absl::OkStatus();
  }

  absl::Status ParseError(const pugi::xml_parse_result& result, size_t offset) const {
    switch (result.status) {
      case pugi::status_bad_comment: {
        const size_t comment = text_.rfind("<!--", offset);
        if (comment == absl::string_view::npos ||
            text_.find("-->", comment + 4) != absl::string_view::npos) {
          return Error(text_.rfind("<!", offset), kDocumentType);
        }
        return Error(comment, "a comment that never ends");
      }
      case pugi::status_bad_pi: {
        const size_t instruction = text_.rfind("<?", offset);
        if (text_.find("?>", instruction) != absl::string_view::npos) break;
        return Error(instruction, "a processing instruction that never ends");
      }
      case pugi::status_bad_cdata: {
        const size_t section = text_.rfind("<![", offset);
        const bool is_cdata =
            section < text_.size() && absl::StartsWith(text_.substr(section), "<![CDATA[");
        return Error(section, is_cdata ? kCdata : kDocumentType);
      }
      case pugi::status_bad_doctype:
        return Error(text_.rfind("<!", offset), kDocumentType);
      case pugi::status_unrecognized_tag: {
        const size_t tag = text_.rfind('<', offset);
        const bool is_declaration = tag < text_.size() && text_.substr(tag + 1, 1) == "!";
        return Error(tag, is_declaration ? kDocumentType : "'<' without the name of an element");
      }
      case pugi::status_bad_start_element:
      case pugi::status_bad_attribute: {
        const TagEnd tag = FindTagEnd(Offset(last_));
        if (!tag.fault.empty()) return TagError(last_, tag.end, tag.fault);
        break;
      }
      case pugi::status_bad_end_element:
      case pugi::status_end_element_mismatch:
        return NestingError();
      default:
        break;
    }
    return Error(Offset(last_), absl::StrCat(ShownName(last_.name()), ": ", result.description()));
  }

  // Checks what follows the last opened element: closing tags, up to the first that does not
  // match.
  absl::Status NestingError() const {
    pugi::xml_node open = last_ ? last_ : document_;
    size_t at = 0;
    if (last_) {
      at = FindTagEnd(Offset(last_)).end;
      if (at >= 2 && text_[at - 2] == '/') open = open.parent();
    }
    while ((at = text_.find('<', at)) != absl::string_view::npos) {
      const absl::string_view rest = text_.substr(at);
      if (!absl::StartsWith(rest, "</")) {
        // A comment or a processing instruction.
        const bool is_comment = absl::StartsWith(rest, "<!--");
        const size_t last = is_comment ? rest.find("-->", 4) : rest.find("?>", 2);
        at += std::min(last, rest.size() - 1) + 1;
        continue;
      }
      const size_t end = rest.find('>');
      if (end == absl::string_view::npos) return Error(at, "a closing tag that the file cuts off");
      const absl::string_view name = absl::StripTrailingAsciiWhitespace(rest.substr(2, end - 2));
      const std::string shown = absl::StrCat("</", ShownName(name).substr(1));
      if (open == document_) return Error(at, absl::StrCat(shown, " closes nothing"));
      if (name != open.name()) {
        return Error(at, absl::StrCat(shown, " where ", ShownName(open.name()), " of line ",
                                      Line(open), " must be closed first"));
      }
      open = open.parent();
      at += end + 1;
    }
    return Error(text_.size(), absl::StrCat(ShownName(open.name()), " of line ", Line(open),
                                            " is still open where the file ends"));
  }

  // Finds the end of the tag whose name is at `offset`; on an error, `end` is the error's offset.
  TagEnd FindTagEnd(size_t offset) const {
    char quote = '\0';
    for (size_t at = offset; at < text_.size(); ++at) {
      const char c = text_[at];
      if (c == '<') return {at, kLess};
      if (c == '&' && !IsEntity(text_.substr(at))) return {at, kAmpersand};
      if (quote != '\0') {
        if (c == quote) quote = '\0';
      } else if (c == '"' || c == '\'') {
        quote = c;
      } else if (c == '>') {
        return {at + 1, ""};
      }
    }
    return {text_.size(),
            quote == '\0' ? "the file ends within the tag" : "the file ends within a quoted value"};
  }

  // The offset in the text of an element's name, or of the beginning of a text node.
  static size_t Offset(const pugi::xml_node& node) {
    return static_cast<size_t>(std::max<ptrdiff_t>(node.offset_debug(), 0));
  }

  // Continues from the previous call: calls come in text order, except for errors.
  int LineAt(size_t offset) const {
    const size_t end = std::min(offset, text_.size());
    if (end < line_offset_) {
      line_offset_ = 0;
      line_ = 1;
    }
    const absl::string_view passed = text_.substr(line_offset_, end - line_offset_);
    line_ += static_cast<int>(std::count(passed.begin(), passed.end(), '\n'));
    line_offset_ = end;
    return line_;
  }

  absl::Status Error(size_t offset, absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("line ", LineAt(offset), ": ", what));
  }

  absl::Status TagError(const pugi::xml_node& node, size_t offset, absl::string_view what) const {
    return Error(offset, absl::StrCat(ShownName(node.name()), " of line ", Line(node), ": ", what));
  }

  absl::Status TooMuch(size_t offset, absl::string_view what) const {
    return absl::ResourceExhaustedError(absl::StrCat("line ", LineAt(offset), ": ", what));
  }

  const absl::string_view text_;
  pugi::xml_document document_;
  // The last opened element among those that were checked.
  pugi::xml_node last_;
  mutable size_t line_offset_ = 0;
  mutable int line_ = 1;
};

// One use per file.
class Reader final {
 public:
  absl::StatusOr<NcclTopology> Run(absl::string_view text) {
    XmlDocument document(text);
    FERRY_RETURN_IF_ERROR(document.Parse());
    document_ = &document;
    const pugi::xml_node root = document.root();
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
  // Fills `element` from `node`. Recursion is bounded by the document's depth limit.
  //   ancestors: bus ids of the enclosing pci elements, each in '/'.
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
      const std::string value = WithoutEntities(attribute.value());
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
      element.attributes.push_back({std::string(name), value});
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

  // Bus ids are identities: a repeated one would make the tree a graph, perhaps with a cycle.
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

  int Line(const pugi::xml_node& node) const { return document_->Line(node); }

  // <pci busid="0000:19:00.0">, or the plain tag for elements without an identity.
  static std::string Tag(const pugi::xml_node& node) {
    for (const char* name : {"busid", "numaid", "dev", "target"}) {
      const pugi::xml_attribute attribute = node.attribute(name);
      if (!attribute) continue;
      return absl::StrCat("<", Shown(node.name()), " ", name, "=\"",
                          Shown(WithoutEntities(attribute.value())), "\">");
    }
    return absl::StrCat("<", Shown(node.name()), ">");
  }

  // Bounded: within the limits, a file may have a million of them.
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

  const XmlDocument* document_ = nullptr;
  NcclTopology topology_;
  std::string host_;  // of the cpu element being read
  absl::flat_hash_map<std::string, int> pci_lines_;
  absl::flat_hash_map<std::string, int> cpu_lines_;
};

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

}  // namespace

absl::StatusOr<NcclTopology> ReadNcclXml(absl::string_view text) { return Reader().Run(text); }

absl::StatusOr<NcclTopology> ReadNcclXmlFile(const std::string& path) {
  const std::unique_ptr<std::FILE, FileCloser> file(std::fopen(path.c_str(), "rb"));
  if (file == nullptr) {
    return absl::NotFoundError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  // One byte more than the limit, so that a longer file, or an endless one, is detected.
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
