#pragma once
// Chrome's trace events ("Trace Event Format"), as Perfetto and chrome://tracing load them: spans,
// instants and counters on tracks. A track is a process (a node, a run) and a thread (an actor, a
// rank). Times are microseconds since 1970.

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "runtime/base/json.h"

namespace troupe::tools {

class TraceEvents {
 public:
  struct Track {
    int process = 0;
    int thread = 0;
  };
  // Names are shown; lower numbers stand higher. Once each.
  void name_process(int process, const std::string& name);
  void name_thread(Track track, const std::string& name);

  // From `begin_us` to `end_us`; one that would end before it begins has no length. Spans of one
  // track lie apart or one within the other.
  void span(Track track, const std::string& name, std::string category, std::int64_t begin_us,
            std::int64_t end_us, json::Object args = {});
  // `everywhere`: a line through all tracks.
  void instant(Track track, const std::string& name, std::string category, std::int64_t time_us,
               json::Object args = {}, bool everywhere = false);
  void counter(int process, const std::string& name, std::int64_t time_us, double value);

  std::size_t size() const { return events_.size(); }
  // {"traceEvents": […], "displayTimeUnit": "ms", "otherData": …}
  json::Value finish(json::Object other_data);

 private:
  json::Array events_;
};

}  // namespace troupe::tools
