#include "train/trainer/host_access.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/check.h"

namespace troupe::train {

std::span<std::byte> HostAccess::stage(std::size_t bytes) {
  if (staging_.size() < bytes) staging_.resize(bytes);
  return std::span(staging_).first(bytes);
}

Status HostAccess::write(std::span<std::byte> target, const Fill& fill) {
  if (in_place()) return target.empty() ? Status() : fill(0, target);
  for (std::size_t at = 0; at < target.size(); at += kPieceBytes) {
    const auto piece = stage(std::min(kPieceBytes, target.size() - at));
    TROUPE_RETURN_IF_ERROR(fill(at, piece));
    operators_->upload(piece.data(), target.data() + at, piece.size());
    TROUPE_RETURN_IF_ERROR(operators_->failure());
  }
  return {};
}

Status HostAccess::write(std::span<std::byte> target, std::span<const std::byte> from) {
  TROUPE_CHECK(target.size() == from.size(), "{} of {} bytes", target.size(), from.size());
  if (target.empty()) return {};
  if (in_place()) {
    std::memcpy(target.data(), from.data(), from.size());
    return {};
  }
  operators_->upload(from.data(), target.data(), from.size());
  return operators_->failure();
}

Status HostAccess::zero(std::span<std::byte> target) {
  if (target.empty()) return {};
  if (in_place()) {
    std::memset(target.data(), 0, target.size());
    return {};
  }
  TROUPE_CHECK(target.size() % sizeof(float) == 0);
  operators_->zero(reinterpret_cast<float*>(target.data()),
                   static_cast<std::int64_t>(target.size() / sizeof(float)));
  return operators_->failure();
}

Status HostAccess::read(std::span<const std::byte> source, const See& see) {
  if (in_place()) return source.empty() ? Status() : see(0, source);
  for (std::size_t at = 0; at < source.size(); at += kPieceBytes) {
    const auto piece = stage(std::min(kPieceBytes, source.size() - at));
    TROUPE_RETURN_IF_ERROR(read(source.subspan(at, piece.size()), piece));
    TROUPE_RETURN_IF_ERROR(see(at, piece));
  }
  return {};
}

Status HostAccess::read(std::span<const std::byte> source, std::span<std::byte> out) {
  TROUPE_CHECK(source.size() == out.size(), "{} of {} bytes", out.size(), source.size());
  if (source.empty()) return {};
  if (in_place()) {
    std::memcpy(out.data(), source.data(), source.size());
    return {};
  }
  operators_->download(source.data(), out.data(), out.size());
  return operators_->failure();
}

}  // namespace troupe::train
