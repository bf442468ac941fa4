#include "scheduler/head/journal_writer.h"

#include <utility>

#include "runtime/base/check.h"

namespace troupe::scheduler {

JournalWriter::JournalWriter(net::EventLoop& loop, Journal& journal)
    : loop_(loop),
      journal_(journal),
      thread_(std::make_unique<net::LoopThread>("troupe-journal")) {}

JournalWriter::~JournalWriter() {
  alive_.reset();
  thread_.reset();
}

bool JournalWriter::can_append() const {
  TROUPE_CHECK(!busy_);
  return journal_.can_append();
}

bool JournalWriter::wants_rewrite(std::uint64_t more_bytes) const {
  TROUPE_CHECK(!busy_);
  return journal_.wants_rewrite(more_bytes);
}

void JournalWriter::write(bool rewrite, std::vector<Delta> deltas,
                          std::function<void(Written)> done) {
  TROUPE_CHECK(!std::exchange(busy_, true));
  // Shared, as what a loop is given may be copied: encoded and freed on the writer's thread.
  auto work = std::make_shared<std::vector<Delta>>(std::move(deltas));
  thread_->loop().post([this, rewrite, work = std::move(work), done = std::move(done),
                        alive = std::weak_ptr<bool>(alive_)]() mutable {
    const TimePoint begin = loop_.clock().now();
    Written written{.rewrite = rewrite};
    written.status = rewrite ? journal_.rewrite(*work) : journal_.append(*work);
    written.took = loop_.clock().now() - begin;
    written.size_bytes = journal_.size_bytes();
    work.reset();
    loop_.post([this, alive = std::move(alive), written = std::move(written),
                done = std::move(done)]() mutable {
      if (alive.expired()) return;
      busy_ = false;
      done(std::move(written));
    });
  });
}

}  // namespace troupe::scheduler
