#include "train/config/translation.h"

#include "runtime/base/check.h"
#include "train/config/keys.h"

namespace troupe::train {

void Translation::add(const ForeignKeys& keys, const json::Object& values, const ShownName& shown,
                      const ForeignKeys::OriginOf& origin) {
  for (auto& fact : keys.describe(values, shown, origin)) facts.push_back(std::move(fact));
  for (auto& notice : keys.notices(values, shown)) notices.push_back(std::move(notice));
}

json::Object take_our_settings(const SourceDocument& theirs,
                               const std::function<bool(const std::string& key)>& is_theirs,
                               Translation& out, Problems& problems) {
  json::Object left;
  const auto put = [&](const std::string& path, const json::Value& value) {
    const Status set = set_path(out.document, path, value, theirs.origin_of(path));
    if (!set.ok()) problems.add(path, set);
  };
  for (const auto& member : theirs.values) {
    const std::string name(member.key());
    const auto kind = theirs.origin_of(name).kind;
    const bool argument = kind == OriginKind::kOverride || kind == OriginKind::kFlag;
    if (name == "troupe") {
      if (const auto* ours = member.value().if_object()) {
        for (const auto& setting : *ours)
          put("troupe." + std::string(setting.key()), setting.value());
      } else if (!member.value().is_null()) {
        problems.add(Code::kInvalidArgument, name, "expected settings, as in troupe: {workers: 2}");
      }
    } else if (argument && !is_theirs(name) && find_key(name)) {
      put(name, member.value());
    } else {
      left[member.key()] = member.value();
    }
  }
  return left;
}

void put_over(const SourceDocument& settings, SourceDocument& document) {
  for (const auto& [path, origin] : settings.origins) {
    const auto dot = path.find('.');
    const auto* value = settings.values.if_contains(path.substr(0, dot));
    if (value && dot != std::string::npos) value = json::find(*value, path.substr(dot + 1));
    // Both sides name keys of ours, which never lie in one another.
    if (value) TROUPE_CHECK(set_path(document, path, *value, origin).ok(), "{}", path);
  }
}

}  // namespace troupe::train
