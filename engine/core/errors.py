"""Faults of a core, one type each, so that a caller and a test can tell them apart."""

from engine.errors import CoreError


class FormatError(CoreError):
    """JSON that does not follow the schema: names the key, what was expected and found."""

    def __init__(self, key: str, expected: str, found: str) -> None:
        super().__init__(f"{key}: expected {expected}, found {found}")
        self.key = key
        self.expected = expected
        self.found = found


class VersionError(CoreError):
    """The format version lies outside the window that this reader takes."""


class CoreFileError(CoreError):
    """A file of the core is missing, cut short, too long, or lies outside the core."""


class DigestMismatchError(CoreError):
    """Bytes are not what the manifest says they are."""


class DuplicateIdError(CoreError):
    """Two entries of one table have the same id."""


class DanglingReferenceError(CoreError):
    """An entry names another one that is not in the core."""


class KernelMissingError(DanglingReferenceError):
    """A graph, a launch or a tuning record names a kernel that the catalog lacks."""


class LayoutMissingError(DanglingReferenceError):
    """A graph or a program names a weight layout that the storage table lacks."""


class TuningMissingError(DanglingReferenceError):
    """A graph or a tuning record depends on a tuning key that the catalog lacks."""


class ProgramMissingError(DanglingReferenceError):
    """A graph names a program that the core lacks."""


class FamilyMismatchError(CoreError):
    """The stored family contradicts the graph's kind."""


class CapacityGapError(CoreError):
    """Some batch within the core's limits has no graph that takes it."""


class DependencyCycleError(CoreError):
    """Tuning records depend on each other in a circle."""


class NumericsConflictError(CoreError):
    """One weight would be computed in two numerics classes for the same role."""


class StorageInvalidError(CoreError):
    """The storage table contradicts itself: alignment, sizes, overlaps."""


class RankMismatchError(CoreError):
    """The ranks' shards do not hold the same tensors."""


class ModelInvalidError(CoreError):
    """The model's sizes or the core's limits make no sense together."""


class KernelInvalidError(CoreError):
    """A kernel's id, variant, operation and parameters contradict each other."""


class TargetUnknownError(CoreError):
    """A core needs something of its machine that this version has no name for."""


class MeasurementInvalidError(CoreError):
    """A measured value contradicts the graph it is of, or itself."""


class CanaryError(CoreError):
    """A graph computes other bits than it did when the core was exported."""


class RowInvarianceError(CoreError):
    """A graph gave a row other bits in a batch than the row has alone."""
