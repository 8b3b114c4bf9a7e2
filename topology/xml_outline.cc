// SPDX-License-Identifier: Apache-2.0
// A one-pass checker of XML structure.
#include "topology/xml_outline.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"

namespace ferry {
namespace {

constexpr absl::string_view kByteOrderMark = "\xef\xbb\xbf";
constexpr absl::string_view kEntities[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&apos;"};
constexpr size_t kShownBytes = 40;  // of foreign text in a message

// Foreign text in a message: escaped, and not too much of it.
std::string Shown(absl::string_view text) { return absl::CEscape(text.substr(0, kShownBytes)); }

bool IsSpace(char c) { return absl::ascii_isspace(static_cast<unsigned char>(c)); }

// One use per document; the members are the state of the pass.
class Outliner final {
 public:
  Outliner(absl::string_view text, const XmlLimits& limits) : text_(text), limits_(limits) {}

  absl::StatusOr<XmlOutline> Run() {
    if (absl::StartsWith(text_, kByteOrderMark)) Advance(kByteOrderMark.size());
    while (position_ < text_.size()) {
      if (IsSpace(text_[position_])) {
        Advance(1);
      } else if (text_[position_] != '<') {
        const absl::string_view rest = text_.substr(position_);
        return Error(absl::StrCat("text \"", Shown(rest.substr(0, rest.find('<'))),
                                  "\" between the elements"));
      } else {
        FERRY_RETURN_IF_ERROR(Markup());
      }
    }
    if (!open_.empty()) {
      const XmlTag& tag = outline_.tags[open_.back()];
      return absl::InvalidArgumentError(absl::StrCat("line ", line_, ": <", Shown(tag.name),
                                                     "> of line ", tag.line,
                                                     " is still open where the file ends"));
    }
    if (outline_.tags.empty()) return Error("the file holds no element");
    return std::move(outline_);
  }

 private:
  // At '<': a comment, an instruction, an opening or a closing tag.
  absl::Status Markup() {
    const absl::string_view rest = text_.substr(position_);
    if (absl::StartsWith(rest, "<!--")) return Skip("<!--", "-->", "a comment");
    if (absl::StartsWith(rest, "<?")) return Skip("<?", "?>", "a processing instruction");
    if (absl::StartsWith(rest, "<![CDATA["))
      return Error("a CDATA section, where only elements go");
    if (absl::StartsWith(rest, "<!")) {
      return Error("a document type or entity declaration, which topology files may not have");
    }
    return absl::StartsWith(rest, "</") ? Close() : Open();
  }

  absl::Status Skip(absl::string_view begin, absl::string_view end, absl::string_view what) {
    const size_t found = text_.find(end.data(), position_ + begin.size(), end.size());
    if (found == absl::string_view::npos) return Error(absl::StrCat(what, " that never ends"));
    Advance(found + end.size() - position_);
    return absl::OkStatus();
  }

  absl::Status Close() {
    const size_t end = text_.find('>', position_);
    if (end == absl::string_view::npos) return Error("a closing tag that the file cuts off");
    const absl::string_view name =
        absl::StripAsciiWhitespace(text_.substr(position_ + 2, end - position_ - 2));
    if (open_.empty()) {
      return Error(absl::StrCat("</", Shown(name), "> closes nothing"));
    }
    const XmlTag& tag = outline_.tags[open_.back()];
    if (name != tag.name) {
      return Error(absl::StrCat("</", Shown(name), "> where <", Shown(tag.name), "> of line ",
                                tag.line, " must be closed first"));
    }
    open_.pop_back();
    Advance(end + 1 - position_);
    return absl::OkStatus();
  }

  absl::Status Open() {
    size_t end = position_ + 1;
    while (end < text_.size() && !IsSpace(text_[end]) && text_[end] != '>' && text_[end] != '/' &&
           text_[end] != '<') {
      ++end;
    }
    const absl::string_view name = text_.substr(position_ + 1, end - position_ - 1);
    if (name.empty()) return Error("'<' without the name of an element");
    const std::string shown = Shown(name);
    if (open_.empty() && !outline_.tags.empty()) {
      return Error(absl::StrCat("<", shown, "> after the end of <", Shown(outline_.tags[0].name),
                                ">: a file has one outermost element"));
    }
    if (outline_.tags.size() == limits_.max_elements) {
      return TooMuch(absl::StrCat("<", shown, ">: more than ", limits_.max_elements, " elements"));
    }
    if (static_cast<int>(open_.size()) == limits_.max_depth) {
      return TooMuch(absl::StrCat("<", shown, ">: nested more than ", limits_.max_depth, " deep"));
    }
    outline_.tags.push_back(XmlTag{position_, line_, std::string(name)});
    Advance(end - position_);
    return Attributes(outline_.tags.size() - 1);
  }

  // Behind the name of tag `index`: everything up to its '>'.
  absl::Status Attributes(size_t index) {
    const XmlTag& tag = outline_.tags[index];
    const auto error = [this, &tag](absl::string_view what) {
      return Error(absl::StrCat("<", Shown(tag.name), "> of line ", tag.line, ": ", what));
    };
    char quote = '\0';
    for (; position_ < text_.size(); Advance(1)) {
      const char c = text_[position_];
      if (c == '<') return error("'<' before the tag ends");
      if (c == '&' && !IsEntity())
        return error("'&' that is none of &amp; &lt; &gt; &quot; &apos;");
      if (quote != '\0') {
        if (c == quote) quote = '\0';
      } else if (c == '"' || c == '\'') {
        quote = c;
      } else if (c == '>') {
        if (text_[position_ - 1] != '/') open_.push_back(index);
        Advance(1);
        return absl::OkStatus();
      }
    }
    return error(quote == '\0' ? "the file ends within the tag"
                               : "the file ends within a quoted value");
  }

  bool IsEntity() const {
    const absl::string_view rest = text_.substr(position_);
    return std::any_of(std::begin(kEntities), std::end(kEntities),
                       [rest](absl::string_view entity) { return absl::StartsWith(rest, entity); });
  }

  void Advance(size_t bytes) {
    const absl::string_view passed = text_.substr(position_, bytes);
    line_ += static_cast<int>(std::count(passed.begin(), passed.end(), '\n'));
    position_ += bytes;
  }

  absl::Status Error(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("line ", line_, ": ", what));
  }

  absl::Status TooMuch(absl::string_view what) const {
    return absl::ResourceExhaustedError(absl::StrCat("line ", line_, ": ", what));
  }

  const absl::string_view text_;
  const XmlLimits& limits_;
  size_t position_ = 0;
  int line_ = 1;
  std::vector<size_t> open_;  // indexes into outline_.tags
  XmlOutline outline_;
};

}  // namespace

const XmlTag* XmlOutline::TagAt(size_t offset) const {
  const auto after =
      std::upper_bound(tags.begin(), tags.end(), offset,
                       [](size_t wanted, const XmlTag& tag) { return wanted < tag.offset; });
  return after == tags.begin() ? nullptr : &*(after - 1);
}

absl::StatusOr<XmlOutline> OutlineXml(absl::string_view text, const XmlLimits& limits) {
  if (text.size() > limits.max_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the file has ", text.size(), " bytes, at most ", limits.max_bytes, " are read"));
  }
  const size_t zero = text.find('\0');
  if (zero != absl::string_view::npos) {
    const auto lines = std::count(text.begin(), text.begin() + zero, '\n');
    return absl::InvalidArgumentError(
        absl::StrCat("line ", lines + 1, ": a zero byte: this is no UTF-8 text"));
  }
  return Outliner(text, limits).Run();
}

}  // namespace ferry
