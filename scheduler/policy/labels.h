#pragma once
// Conditions on nodes' labels: parsing, matching one node, printing.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/status.h"
#include "runtime/wire/types.h"

namespace troupe::scheduler {

using Labels = std::map<std::string, std::string>;

// The forms that Ray's label_selector has, and a test for the label itself:
//   "a", "!a", "in(a,b)", "!in(a,b)", "exists()", "!exists()"
// kInvalidArgument names the label and the forms.
Result<wire::LabelTerm> parse_label_term(std::string_view key, std::string_view text);
Result<wire::LabelSelector> parse_label_selector(const std::map<std::string, std::string>& texts);

// A label that the head numbers: "first_free(4)" becomes the lowest of 0, 1, 2, 3 that no other
// node there has; a node for which none is free has no such label until one is. N of
// first_free(N); nothing: the value is not of that form.
std::optional<std::int64_t> first_free_of(std::string_view value);

// A node's own labels: kInvalidArgument for an empty key, more than 256 of them, or a malformed
// first_free(N).
Status check_labels(const Labels& labels);
// kInvalidArgument when a key is empty, or there are more than 32 terms or 1,024 values of one.
Status validate(const wire::LabelSelector& selector);

bool matches(const wire::LabelTerm& term, const Labels& labels);
bool matches(const wire::LabelSelector& selector, const Labels& labels);

// "zone=a, rack!=7, disk in(ssd,nvme), no label old"
std::string format_selector(const wire::LabelSelector& selector);

}  // namespace troupe::scheduler
