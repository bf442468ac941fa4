#include "train/config/claims.h"

#include "train/config/keys.h"

namespace troupe::train {
namespace {

// "zero_optimization.stage=3 (zero3)"
std::string claim_text(const Claim& claim) {
  const auto meaning = value_text(claim.value);
  const auto text = fmt::format("{}={}", claim.key, claim.shown);
  return meaning == claim.shown ? text : fmt::format("{} ({})", text, meaning);
}

}  // namespace

void Claims::add(const std::string& subject, Claim claim) {
  if (claim.shown.empty()) claim.shown = value_text(claim.value);
  claims_[subject].push_back(std::move(claim));
}

const Claim* Claims::settle(const std::string& subject, Problems& problems) const {
  const auto found = claims_.find(subject);
  if (found == claims_.end()) return nullptr;
  const auto& first = found->second.front();
  for (const auto& claim : found->second) {
    if (claim.value == first.value) continue;
    problems.add_named(
        Code::kInvalidArgument, first.key,
        fmt::format("{} and {} disagree about {}; make them agree, or leave one of them out",
                    claim_text(first), claim_text(claim), subject));
    break;
  }
  return &first;
}

}  // namespace troupe::train
