#include "train/trainer/bundle_courier.h"
#include "runtime/memory/segment_transfer.h"

#include <sys/stat.h>

#include <memory>

#include "train/trainer/cache_delivery.h"
#include "train/trainer/trainer_messages.h"
#include "troupe/raw_connection.h"

namespace troupe::train {
namespace {

// For a connection, and for the answer of a trainer on this node: it takes over a descriptor, and
// nothing is copied.
constexpr auto kTrainerConnectTimeout = std::chrono::seconds(20);
constexpr auto kAttachTimeout = std::chrono::seconds(5);
constexpr const char* kBundleSegment = "controller/bundle";

Result<memory::Segment> map_bundle(UniqueFd fd) {
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0 || info.st_size <= 0) {
    return error(Code::kDataLoss, "the kept run data are no memory");
  }
  return memory::Segment::adopt(std::move(fd), static_cast<std::size_t>(info.st_size),
                                memory::Access::kReadOnly);
}

}  // namespace

Status BundleCourier::receive(ByteStream stream, bool same_node) {
  bundle_ = TROUPE_TRY(
      memory::receive_segment(stream, same_node, kBundleBytesMax, Deadline::after(kBundleTimeout)));
  wants_bundle_ = false;
  const Status kept = context_.keep_segment(kBundleSegment, bundle_->fd());
  if (!kept.ok()) context_.log().warning("keeping the run's data: {}", kept.to_string());
  return {};
}

Status BundleCourier::restore() {
  auto kept = TROUPE_TRY(context_.attach_segment(kBundleSegment, Deadline::after(kAttachTimeout)));
  bundle_ = TROUPE_TRY(map_bundle(std::move(kept)));
  return {};
}

Result<BundleCourier::Delivery> BundleCourier::delivery(const std::string& token_cache) const {
  auto mapped = TROUPE_TRY(map_bundle(TROUPE_TRY(bundle_->duplicate_fd())));
  return Delivery([&context = context_, token_cache,
                   bundle = std::make_shared<const memory::Segment>(std::move(mapped))](
                      ActorId trainer) -> Status {
    auto connection = TROUPE_TRY(
        context.connect_to(trainer, kBundlePurpose, Deadline::after(kTrainerConnectTimeout)));
    TROUPE_RETURN_IF_ERROR(memory::send_segment(
        connection.stream, connection.same_node, *bundle,
        Deadline::after(connection.same_node ? kTrainerConnectTimeout : kBundleTimeout)));
    if (connection.same_node || token_cache.empty()) return {};
    // What it could not take it says itself when it is to train.
    PosixFileSystem files;
    if (const Status given = offer_token_cache(files, connection.stream, token_cache); !given.ok())
      context.log().warning("tokenised data for a trainer of another node: {}", given.to_string());
    return {};
  });
}

}  // namespace troupe::train
