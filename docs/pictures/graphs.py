"""Pictures of paths, flows, trees, matchings and tours in graphs, and of transport plans."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure

import structinf as si
from structinf import plot

from .gallery import picture


@picture
def dag_path() -> Figure:
    heard = {
        ("0", "3"): ("recognise", -2.2),
        ("3", "6"): ("speech", -1.2),
        ("0", "1"): ("wreck", -0.6),
        ("1", "2"): ("a", -0.4),
        ("2", "4"): ("nice", -1.0),
        ("1", "4"): ("an ice", -1.9),
        ("4", "6"): ("beach", -1.4),
        ("4", "5"): ("peach", -1.3),
        ("5", "6"): ("y", -1.4),
    }
    names, scores = zip(*heard.values(), strict=True)
    edges = list(heard)
    solution = si.infer(torch.tensor(scores), "dag_path", "sparsemap", graph=edges)
    return plot.route(solution, edges, names=names, title="What was said?")


@picture
def path() -> Figure:
    places = {
        "home": (0, 1), "park": (2, 2.4), "mill": (1.8, 0), "lake": (4, 1.2), "school": (5.2, 2.6), "shop": (5, -0.1),
        "work": (7, 1.2),
    }  # fmt: skip
    minutes = {
        ("home", "park"): 6.0, ("home", "mill"): 5.0, ("park", "lake"): 5.2, ("mill", "lake"): 5.7,
        ("park", "mill"): 6.0, ("park", "school"): 7.0, ("mill", "shop"): 7.0, ("lake", "school"): 4.0,
        ("lake", "shop"): 4.0, ("lake", "work"): 8.0, ("school", "work"): 5.0, ("shop", "work"): 4.6,
    }  # fmt: skip
    oracle = si.get_oracle("path", graph=list(minutes), source="home", target="work", directed=False)
    solution = si.infer(-torch.tensor(list(minutes.values())), oracle, "sparsemap")
    return plot.network(
        solution, list(minutes), positions=places, directed=False, title="Home to work, both ways along each road"
    )


@picture
def flow() -> Figure:
    places = {"spring": (0, 1), "dam": (2, 2), "mill": (2, 0), "plant": (4, 2), "farm": (4, 0), "town": (6, 1)}
    cost = {
        ("spring", "dam"): 1.0, ("spring", "mill"): 1.2, ("dam", "plant"): 1.5, ("dam", "farm"): 2.3,
        ("mill", "farm"): 1.0, ("mill", "plant"): 2.2, ("farm", "plant"): 0.4, ("plant", "town"): 0.7,
        ("farm", "town"): 1.6, ("plant", "farm"): 0.4,
    }  # fmt: skip
    pipes = si.get_oracle(
        "flow",
        graph=list(cost),
        supplies={"spring": 6, "town": -5, "farm": -1},
        capacities=[4, 4, 3, 2, 3, 2, 2, 4, 3, 2],
    )
    solution = si.infer(-torch.tensor(list(cost.values())), pipes, "sparsemap", temperature=0.3)
    return plot.network(solution, list(cost), positions=places, title="Water for a farm and a town")


@picture
def spanning_tree() -> Figure:
    cities = {
        "Dublin": (-6.3, 53.3), "London": (-0.1, 51.5), "Paris": (2.4, 48.9), "Berlin": (13.4, 52.5),
        "Warsaw": (21.0, 52.2), "Zurich": (8.5, 47.4), "Barcelona": (2.2, 41.4), "Rome": (12.5, 41.9),
    }  # fmt: skip
    where = torch.tensor(list(cities.values())) * torch.tensor([0.68, 1.0])
    solution = si.infer(-torch.cdist(where, where), "spanning_tree", "sparsemap", temperature=1.5)
    return plot.network(solution, nodes=list(cities), positions=where, title="Joining eight cities")


@picture
def markov_field() -> Figure:
    """Draw why the grass is wet, in the network of Russell & Norvig, Artificial Intelligence, chapter on inference."""
    factors = [(0,), (0, 1), (0, 2), (1, 2, 3), (3,)]
    sprinkler_on, rain_falls = torch.tensor([0.5, 0.1]), torch.tensor([0.2, 0.8])
    wet = torch.tensor([[0.0, 0.9], [0.9, 0.99]])
    tables = (
        torch.tensor([0.5, 0.5]),
        torch.stack([1 - sprinkler_on, sprinkler_on], 1),
        torch.stack([1 - rain_falls, rain_falls], 1),
        torch.stack([1 - wet, wet], 2),
        torch.tensor([0.0, 1.0]),  # seen: the grass is wet
    )
    theta = tuple(table.log() for table in tables)
    solution = si.infer(theta, "markov_field", "marginals", cardinalities=(2, 2, 2, 2), factors=factors)
    return plot.factor_graph(
        solution,
        factors,
        variables=["cloudy", "sprinkler", "rain", "wet grass"],
        values=["no", "yes"],
        positions=[(1, 2), (0, 1), (2, 1), (1, 0)],
        title="Why is the grass wet?",
    )


@picture
def matching() -> Figure:
    people = ["Ada", "Ben", "Cleo", "Dan", "Eve", "Finn"]
    liking = torch.rand(6, 6, generator=torch.Generator().manual_seed(1))
    solution = si.infer(3 * liking, "matching", "sparsemap")
    return plot.network(solution, nodes=people, title="Three pairs for a card game")


@picture
def tour() -> Figure:
    """Draw a round trip between islands. A current makes the trip against it more expensive than the trip along it."""
    where = torch.tensor([[0.0, 0.0], [2.0, 0.6], [3.8, 0.0], [4.4, 1.8], [2.6, 2.4], [2.2, 1.5], [0.2, 2.2]])
    ahead = where - where[:, None]
    out = where - torch.tensor([2.2, 1.2])
    along = out[:, None, 0] * ahead[..., 1] - out[:, None, 1] * ahead[..., 0]
    miles = ahead.norm(dim=2) - 0.02 * along
    islands = ["Port", "Gull", "Rock", "Light", "Sand", "Palm", "Seal"]
    solution = si.infer(-miles, "tour", "sparsemap", temperature=0.3)
    return plot.network(solution, nodes=islands, positions=where, title="A round trip by sail")


@picture
def transportation() -> Figure:
    bakeries, cafés = ["Rye 6", "Oat 3", "Spelt 4"], ["Anker", "Bär", "Clou", "Drei"]
    distance = torch.tensor([[1.0, 2.0, 3.0, 2.6], [2.4, 1.0, 1.2, 3.0], [3.2, 2.2, 1.5, 1.0]])
    oracle = si.get_oracle("transportation", supplies=[6, 3, 4], demands=[4, 3, 3, 3])
    solution = si.infer(-distance, oracle, "sparsemap", temperature=0.5)
    return plot.assignment(solution, rows=bakeries, columns=cafés, title="Bread for four cafés")
