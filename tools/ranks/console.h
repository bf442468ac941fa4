#pragma once
// What ranks write, onto this process's own output and error: by a thread of its own, so that a
// console that takes nothing (a stopped terminal, a pager) holds up neither the run nor a signal.

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <ostream>
#include <streambuf>
#include <string>
#include <string_view>
#include <thread>

#include "runtime/base/clock.h"

namespace troupe::tools {

class Console {
 public:
  struct Streams {
    std::ostream& out;
    std::ostream& err;
    int out_fd = -1;  // the descriptors behind them; -1: writing to it does not wait
    int err_fd = -1;
    // Both are one terminal, where a line of one stream would go on in a line of the other.
    bool one_terminal = false;
  };
  // The streams outlive it; nobody else writes to them. What waits is at most `bytes_max`: beyond
  // that text is left out, and that is said. `hurried_drain`: see drain().
  explicit Console(Streams streams, std::size_t bytes_max = std::size_t{256} << 20,
                   Duration hurried_drain = std::chrono::seconds(2));
  ~Console();  // what has not been written is left out
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  // Any thread; never waits. `source` tells those apart whose lines may be interleaved: a whole
  // line of one does not go on in what another has left without an end on standard error.
  void write(const std::string& source, bool to_err, std::string text);
  // The streams, for one thread that writes to them in between; written at each flush.
  std::ostream& out() { return out_stream_; }
  std::ostream& err() { return err_stream_; }
  // Waits until everything is written; once hurried, for `hurried_drain` at most.
  void drain();
  // A signal has come: see drain(). Any thread.
  void hurry();

 private:
  struct Text {
    std::string source;
    bool to_err = false;
    std::string text;
  };
  class Buffer : public std::streambuf {
   public:
    Buffer(Console& console, bool to_err) : console_(console), to_err_(to_err) {}

   private:
    int_type overflow(int_type c) override;
    std::streamsize xsputn(const char* text, std::streamsize count) override;
    int sync() override;
    Console& console_;
    const bool to_err_;
    std::string text_;
  };

  void run();
  // The next text, and what follows of its source, as far as it makes one chunk.
  Text take();
  void write_out(const Text& text);
  // False where it was ended before the stream took all.
  bool put(bool to_err, std::string_view text);

  const Streams streams_;
  const std::size_t bytes_max_;
  const Duration hurried_drain_;
  std::string open_source_;  // of the writing thread: whose text on standard error has no end
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Text> waiting_;
  std::size_t waiting_bytes_ = 0;
  std::size_t left_out_ = 0;
  bool writing_ = false;
  bool hurried_ = false;
  bool ended_ = false;
  Buffer out_buffer_{*this, false};
  Buffer err_buffer_{*this, true};
  std::ostream out_stream_{&out_buffer_};
  std::ostream err_stream_{&err_buffer_};
  std::thread thread_;
};

}  // namespace troupe::tools
