#pragma once
// The flags of `troupe train` that are no keys of a configuration: one table for who reads them and
// for the help.

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"

namespace troupe::tools {

struct TrainFlag {
  const char* name;
  const char* type;  // of its value; "": it has none
  const char* help;
};

namespace train_flags {
inline constexpr TrainFlag kExplain{
    "--explain", "", "print how every key is treated and all problems, and train nothing"};
inline constexpr TrainFlag kDetach{"--detach", "", "run in the background, without the terminal"};
inline constexpr TrainFlag kJson{"--json", "", "print the outcome as JSON"};
inline constexpr TrainFlag kNoWait{"--no-wait", "",
                                   "fail instead of waiting where a running cluster has no room"};
inline constexpr TrainFlag kRequeued{"--requeued", "",
                                     "go on from the newest checkpoint, if there is one"};
inline constexpr TrainFlag kHosts{"--hosts", "HOST:SLOT,…",
                                  "train on these hosts, which are started over ssh"};
inline constexpr TrainFlag kHostfile{
    "--hostfile", "FILE", "a file with such hosts, in lines of the form 'worker-1 slots=4'"};
inline constexpr TrainFlag kInclude{
    "--include", "HOSTS", "only these of the hostfile's hosts and slots: 'worker-1@worker-2:0,2'"};
inline constexpr TrainFlag kExclude{"--exclude", "HOSTS",
                                    "all of the hostfile's hosts and slots but these"};
// Read with the configuration's file (train/config/config_format.h).
inline constexpr TrainFlag kFormat{
    "--format", "llamafactory|axolotl|aitraining",
    "the tool whose configuration it is (default: told by its keys)"};
inline constexpr std::array kAll{kExplain, kDetach,   kJson,    kNoWait,  kRequeued,
                                 kHosts,   kHostfile, kInclude, kExclude, kFormat};
// Of the commands that read a training's configuration, and start none.
inline constexpr std::array kReading{kJson, kFormat};
// Of `troupe data`.
inline constexpr TrainFlag kSamples{"--samples", "N", "show so many samples (default: 1)"};
inline constexpr TrainFlag kEval{"--eval", "", "show those of the evaluation"};
inline constexpr TrainFlag kSampleLines{
    "--json", "", "print JSON: a line for each sample asked for, then the counts"};
inline constexpr std::array kData{kSamples, kEval, kSampleLines, kFormat};
}  // namespace train_flags

// Whether a flag without a value was among the arguments, which lose it.
bool take(std::vector<std::string>& arguments, const TrainFlag& flag);

// kInvalidArgument for a flag of `troupe train` that `command` does not take, for a value of one
// that has none, and for a word that is no key and nearer to a flag than to any key. `taken`: the
// flags that it takes.
Status check_flags(const std::vector<std::string>& arguments, std::string_view command,
                   std::span<const TrainFlag> taken);

// The flags, as a part of the help.
std::string train_flags_help(std::span<const TrainFlag> flags);
// By subject the names of the keys that do something.
std::string train_keys_help();

}  // namespace troupe::tools
