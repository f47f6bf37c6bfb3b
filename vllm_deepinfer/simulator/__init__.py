"""A simulated engine around the real vote and planner: for machines that nobody here has.

    from vllm_deepinfer.simulator import Simulation, scenario_from
    figures = Simulation(scenario_from({"vote": "slo", "rate_per_s": 24})).run().summary()

Needs numpy alone; plots need matplotlib.
"""

from vllm_deepinfer.simulator.acceptance import AcceptanceModel
from vllm_deepinfer.simulator.curves import MachineCurve
from vllm_deepinfer.simulator.engine import Simulation, StepRecord
from vllm_deepinfer.simulator.errors import SimulationError
from vllm_deepinfer.simulator.measures import Measures
from vllm_deepinfer.simulator.options import scenario_from
from vllm_deepinfer.simulator.scenario import Scenario
from vllm_deepinfer.simulator.traffic import Arrival, Traffic

__all__ = [
    "AcceptanceModel",
    "Arrival",
    "MachineCurve",
    "Measures",
    "Scenario",
    "Simulation",
    "SimulationError",
    "StepRecord",
    "Traffic",
    "scenario_from",
]
