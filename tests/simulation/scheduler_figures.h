#pragma once
// What the head's decisions cost on this machine, and how soon it notices what stands still.

#include <string>
#include <vector>

namespace troupe::simulation {

struct Figure {
  std::string name;
  double value = 0;
  std::string unit;
};
// `minutes`: of virtual time that an idle head of 1,000 nodes is watched for.
std::vector<Figure> measure_scheduler(int minutes);

}  // namespace troupe::simulation
