"""What nodes write down about a transfer that has landed; the same in every backend."""

import msgspec

from smartgen.cost.wire import Flow
from smartgen.metrics.records import Purpose, Recorder, TransferRow


class Parcel(msgspec.Struct, frozen=True, eq=False, gc=False):
    """What a posting carries, in counts; the books are kept over it.

    request_ids, and with them entries_by_request, are several where one reply serves a batch.
    layer is null for speculative pushes, whose blocks may lie in several layers.
    """

    request_ids: tuple[int, ...]
    slots: tuple[int, ...]
    purpose: str
    source: str
    layer: int | None
    num_blocks: int
    entries: tuple[float, ...]
    bytes_per_entry: float
    metadata_bytes: float
    messages: int

    @property
    def data_bytes(self) -> float:
        """Bytes of KV, without metadata."""
        return sum(self.entries) * self.bytes_per_entry


def report_transfer(
    recorder: Recorder, parcel: Parcel, flow: Flow, end_s: float, destination: str, status: str
) -> None:
    """Count a parcel's bytes and, if wanted, keep a row of it for each request."""
    for request_id, entries in zip(parcel.request_ids, parcel.entries, strict=True):
        size = entries * parcel.bytes_per_entry
        if status == "landed":
            row = recorder.request(request_id)
            row.add_bytes(parcel.purpose, size)
            if parcel.layer is not None and parcel.purpose == Purpose.PROACTIVE:
                row.add_bytes(Purpose.METADATA, parcel.metadata_bytes)
        if recorder.wants_transfers:
            recorder.transfers.append(
                TransferRow(
                    request_id=request_id,
                    purpose=parcel.purpose,
                    source=parcel.source,
                    destination=destination,
                    layer=parcel.layer,
                    blocks=parcel.num_blocks,
                    entries=entries,
                    bytes=round(size + parcel.metadata_bytes),
                    messages=parcel.messages,
                    posted_s=flow.posted_s,
                    start_s=flow.started_s,
                    end_s=end_s,
                    status=status,
                )
            )
