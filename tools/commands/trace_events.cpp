#include "tools/commands/trace_events.h"

#include <algorithm>

namespace troupe::tools {
namespace {

json::Object metadata(const char* what, TraceEvents::Track track, json::Object args) {
  return {{"name", what},
          {"ph", "M"},
          {"pid", track.process},
          {"tid", track.thread},
          {"args", std::move(args)}};
}

}  // namespace

void TraceEvents::name_process(int process, const std::string& name) {
  events_.push_back(metadata("process_name", {process, 0}, {{"name", name}}));
  events_.push_back(metadata("process_sort_index", {process, 0}, {{"sort_index", process}}));
}

void TraceEvents::name_thread(Track track, const std::string& name) {
  events_.push_back(metadata("thread_name", track, {{"name", name}}));
  events_.push_back(metadata("thread_sort_index", track, {{"sort_index", track.thread}}));
}

void TraceEvents::span(Track track, const std::string& name, std::string category,
                       std::int64_t begin_us, std::int64_t end_us, json::Object args) {
  events_.push_back(json::Object{{"name", name},
                                 {"cat", std::move(category)},
                                 {"ph", "X"},
                                 {"ts", begin_us},
                                 {"dur", std::max<std::int64_t>(end_us - begin_us, 0)},
                                 {"pid", track.process},
                                 {"tid", track.thread},
                                 {"args", std::move(args)}});
}

void TraceEvents::instant(Track track, const std::string& name, std::string category,
                          std::int64_t time_us, json::Object args, bool everywhere) {
  events_.push_back(json::Object{{"name", name},
                                 {"cat", std::move(category)},
                                 {"ph", "i"},
                                 {"s", everywhere ? "g" : "t"},
                                 {"ts", time_us},
                                 {"pid", track.process},
                                 {"tid", track.thread},
                                 {"args", std::move(args)}});
}

void TraceEvents::counter(int process, const std::string& name, std::int64_t time_us,
                          double value) {
  events_.push_back(json::Object{{"name", name},
                                 {"ph", "C"},
                                 {"ts", time_us},
                                 {"pid", process},
                                 {"tid", 0},
                                 {"args", json::Object{{"value", value}}}});
}

json::Value TraceEvents::finish(json::Object other_data) {
  return json::Object{{"traceEvents", std::move(events_)},
                      {"displayTimeUnit", "ms"},
                      {"otherData", std::move(other_data)}};
}

}  // namespace troupe::tools
