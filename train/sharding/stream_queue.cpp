#include "train/sharding/stream_queue.h"

#include <deque>
#include <utility>
#include <vector>

#include "runtime/base/check.h"
#include "train/cuda/device/waiting.h"

namespace troupe::train {
namespace {

class StreamQueue final : public CommunicationQueue {
 public:
  explicit StreamQueue(const StreamQueueOptions& options) : options_(options) {
    TROUPE_CHECK(options_.library && options_.context && options_.communicator && options_.compute);
    options_.communicator->set_asynchronous(true);
  }
  ~StreamQueue() override {
    options_.communicator->set_asynchronous(false);
    for (const Piece& piece : pieces_) free_.push_back(piece.done);
    for (TroupeCudaEvent* event : free_) (void)table().event_destroy(event);
  }

  Ticket submit(std::function<Status()> work) override {
    ++submitted_;
    if (failure_.ok()) keep(run(work));
    return submitted_;
  }

  Status wait(Ticket ticket) override {
    if (!failure_.ok()) return failure_;
    // A later piece's event stands for those before it.
    while (!pieces_.empty() && pieces_.front().ticket < ticket) pop();
    if (pieces_.empty() || waited_ >= ticket) return {};
    waited_ = pieces_.front().ticket;
    keep(check(table().stream_wait(options_.compute, pieces_.front().done)));
    return failure_;
  }

  Status drain() override {
    if (failure_.ok()) failure_ = wait(submitted_);
    if (failure_.ok()) keep(settle());
    return failure_;
  }

  bool overlaps() const override { return true; }

 private:
  struct Piece {
    Ticket ticket;
    TroupeCudaEvent* done;
  };

  // The others must not wait for what this rank does not send any more.
  void keep(Status status) {
    failure_ = std::move(status);
    if (failure_.ok()) return;
    if (!options_.device.empty()) failure_.with("device", options_.device);
    options_.communicator->abort(failure_);
  }
  Status settle() {
    const Deadline deadline = Deadline::after(options_.limit);
    TROUPE_RETURN_IF_ERROR(options_.communicator->settle(deadline));
    // It knows of its collectives alone, which end by their own deadlines: what followed the last
    // one is waited for here.
    if (pieces_.empty()) return {};
    return wait_for_event(table(), pieces_.back().done, deadline,
                          "what was enqueued behind a collective");
  }
  Status run(const std::function<Status()>& work) {
    TROUPE_RETURN_IF_ERROR(options_.communicator->follow(options_.compute));
    TROUPE_RETURN_IF_ERROR(work());
    TroupeCudaEvent* done = nullptr;
    if (free_.empty()) {
      TROUPE_RETURN_IF_ERROR(check(table().event_create(options_.context, 0, &done)));
    } else {
      done = free_.back();
      free_.pop_back();
    }
    pieces_.push_back({submitted_, done});
    return check(table().event_record(done, options_.communicator->stream()));
  }
  // A wait that was enqueued keeps its record, whatever the event is recorded for next.
  void pop() {
    free_.push_back(pieces_.front().done);
    pieces_.pop_front();
  }
  const TroupeCudaTable& table() const { return options_.library->table(); }
  Status check(int code) const {
    return cuda_status(table(), code, "ordering communication and arithmetic");
  }

  const StreamQueueOptions options_;
  Status failure_;
  Ticket submitted_ = 0, waited_ = 0;
  std::deque<Piece> pieces_;  // that may be waited for, in order
  std::vector<TroupeCudaEvent*> free_;
};

}  // namespace

std::unique_ptr<CommunicationQueue> make_stream_queue(const StreamQueueOptions& options) {
  return std::make_unique<StreamQueue>(options);
}

}  // namespace troupe::train
