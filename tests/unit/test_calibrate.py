"""Constants from tables: what is known is found again, and what is wrong with a table is told."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from smartgen.calibrate.command import Calibration, calibration
from smartgen.calibrate.constants import Constant, gpu_constants
from smartgen.calibrate.fit import fit_law
from smartgen.calibrate.specs import SPECS, spec_of
from smartgen.calibrate.tables import read_table
from smartgen.errors import SmartGenError

File = Callable[[str, str], Path]


@pytest.fixture
def file(tmp_path: Path) -> File:
    """Writes a file and returns its path."""

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def fitted(*paths: Path, **told: str) -> dict[str, Constant]:
    """Constants by name."""
    return {one.name: one for one in done(*paths, **told).found.constants}


def done(*paths: Path, **told: str) -> Calibration:
    return calibration([read_table(path) for path in paths], told)


# -- laws


def test_an_overhead_and_a_rate_are_found_again_beside_rows_that_are_far_off() -> None:
    work = np.geomspace(1e9, 1e12, 40)
    time_s = 20e-6 + work / 250e12
    for off in (1.0, 6.0):
        time_s[::8] *= off
        law = fit_law(work, time_s)
        assert law.rate == pytest.approx(250e12, rel=2e-3)
        assert law.overhead_s == pytest.approx(20e-6, rel=2e-2)
    assert law.median_error < 1e-3
    assert law.worst_error == pytest.approx(5 / 6, rel=1e-2)


def test_a_mean_would_have_moved() -> None:
    """What the test above holds the fit to is not held by just any fit."""
    work = np.geomspace(1e9, 1e12, 40)
    time_s = 20e-6 + work / 250e12
    time_s[::8] *= 6.0
    assert np.exp(np.mean(np.log(work / (time_s - 20e-6)))) < 0.9 * 250e12


def test_of_work_that_hardly_differs_only_a_rate_is_told() -> None:
    work = np.linspace(1e12, 2e12, 9)
    law = fit_law(work, 5e-3 + work / 100e12)
    assert law.overhead_s == 0
    assert law.rate < 80e12


# -- GPUs


def gemms(shapes: list[tuple[int, int, int]], seconds: Callable[[int, int, int], float]) -> str:
    rows = [f"{m},{n},{k},{seconds(m, n, k) * 1e3}" for m, n, k in shapes]
    return "\n".join(["m,n,k,latency_ms", *rows]) + "\n"


SHAPES = [(m, n, k) for m in (1, 4, 1024, 4096) for n in (2048, 8192, 16384) for k in (2048, 8192)]


def test_matrix_and_weight_rates_are_found_again_and_small_shapes_do_not_count(file: File) -> None:
    def seconds(m: int, n: int, k: int) -> float:
        if m >= 1024:
            return 5e-6 + 2 * m * n * k / 200e12
        return 3e-6 + 2 * n * k / 1.5e12 if n * k >= 64e6 else 1.0

    table = file("mine.csv", gemms([*SHAPES, (16, 8192, 16384), (16, 16384, 16384)], seconds))
    found = fitted(table, memory_gbytes_per_s="2000")
    assert found["gpu.matmul_tflops"].value == pytest.approx(200, rel=1e-3)
    assert found["gpu.matmul_tflops"].used == 12
    assert found["gpu.weights_efficiency"].value == pytest.approx(0.75, rel=1e-3)
    assert found["gpu.weights_efficiency"].used == 6


def test_the_three_forms_of_a_gemm_table_say_the_same(file: File) -> None:
    shapes = [(m, n, 4096) for m in (1024, 2048, 8192) for n in (2048, 4096, 8192)]
    times = [2 * m * n * k / 90e12 for m, n, k in shapes]
    both = list(zip(shapes, times, strict=True))
    first = [f"{m},{n},{k},{t * 1e3}" for (m, n, k), t in both]
    apex = [f"mine,half,{m},{k},{n},{t * 1e6}" for (m, n, k), t in both]
    apex += [f"mine,float,{m},{k},{n},{t * 1e7}" for (m, n, k), t in both]
    cuda = [f"cuBLAS,{m},{n},{k},{t},90" for (m, n, k), t in both]
    cuda += [f"CuTe TN,{m},{n},{k},{t / 2},180" for (m, n, k), t in both]
    for header, rows in (
        ("m,n,k,latency_ms", first),
        ("gpu,dtype,m,k,n,time(us)", apex),
        ("impl,m,n,k,time_s,tflops", cuda),
    ):
        one = fitted(file("t.csv", "\n".join([header, *rows])))["gpu.matmul_tflops"]
        assert (one.value, one.used) == (pytest.approx(90, rel=1e-4), 9)


def test_attention_of_prefill_and_of_decoding_is_found_again(file: File) -> None:
    prefill = ["kernel_source,batch_size,isl,num_heads,num_key_value_heads,head_dim,latency_ms"]
    for b, n, heads in ((1, 4096, 8), (1, 8192, 40), (2, 16384, 40), (4, 4096, 16), (1, 64, 1)):
        pairs = b * heads * n * n / 2
        prefill.append(f"x,{b},{n},{heads},8,128,{4 * 128 * pairs / 150e12 * 1e3}")
    decoding = [prefill[0].replace("isl,", "isl,step,")]
    for b, n in ((8, 8191), (16, 8191), (32, 8191), (64, 8191), (1, 127)):
        size = 2 * 2 * b * (n + 1) * 8 * 128
        decoding.append(f"x,{b},1,{n},40,8,128,{(9e-6 + size / 1.2e12) * 1e3}")
    found = fitted(
        file("p.csv", "\n".join(prefill)),
        file("d.csv", "# memory_gbytes_per_s: 1600\n" + "\n".join(decoding)),
    )
    assert found["gpu.attention_tflops"].value == pytest.approx(150, rel=1e-3)
    assert found["gpu.attend_efficiency"].value == pytest.approx(0.75, rel=1e-3)
    assert (found["gpu.attention_tflops"].used, found["gpu.attend_efficiency"].used) == (4, 4)


def test_a_share_is_not_told_where_the_specified_rate_is_not_known(file: File) -> None:
    text = gemms([*SHAPES, (1, 16384, 16384)], lambda m, n, k: (n * k + m * n * k / 99) / 1e12)
    notes = done(file("mine.csv", text)).found.notes
    assert any("add memory_gbytes_per_s=NUMBER" in note for note in notes)
    by_name = fitted(file("a100_sxm_gemm.csv", text))
    by_comment = fitted(file("mine.csv", f"# hardware: NVIDIA A100-SXM4-80GB\n{text}"))
    assert by_name["gpu.weights_efficiency"].value == by_comment["gpu.weights_efficiency"].value


def test_a_rate_above_the_specification_is_remarked_upon(file: File) -> None:
    text = gemms(SHAPES, lambda m, n, k: 2 * m * n * k / 500e12)
    found = gpu_constants([read_table(file("t.csv", text))], None, 312.0)
    assert any("is above the specification's 312" in note for note in found.notes)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("a100_sxm_gemm.csv", "NVIDIA A100-SXM4-80GB"),
        ("NVIDIA A100-SXM4-40GB", None),
        ("V100-PCIE-16GB", "NVIDIA V100-PCIE"),
        ("h200_sxm_gemm", "NVIDIA H200-SXM-141GB"),
        ("NVIDIA L20", "NVIDIA L20"),
        ("l200", None),
    ],
)
def test_a_gpu_is_known_by_its_name(text: str, name: str | None) -> None:
    spec = spec_of(text)
    assert (spec.name if spec else None) == name
    assert all(spec_of(each.name) == each for each in SPECS)


def test_tables_of_several_gpus_are_refused(file: File) -> None:
    text = gemms(SHAPES, lambda m, n, k: 2 * m * n * k / 100e12)
    with pytest.raises(SmartGenError, match=r"tables of several GPUs: .*l40s.csv of NVIDIA L40S"):
        fitted(file("h100_sxm.csv", text), file("l40s.csv", text))


# -- hosts and networks


def test_copies_of_one_system_are_found_again(file: File) -> None:
    rows = ["system,gpu,pcie,direction,bytes,GBps"]
    for system, rate in (("mine", 20.0), ("other", 12.0)):
        for direction, factor in (("h2d", 1.0), ("d2h", 1.1)):
            for size in (1e6, 1e7, 1e8, 1e9):
                seconds = 10e-6 + size / (rate * factor * 1e9)
                rows.append(f"{system},a,gen4,{direction},{size:.0f},{size / seconds / 1e9}")
    path = file("copies.csv", "\n".join(rows))
    found = fitted(path, system="mine")
    assert found["host.copy_gbytes_per_s"].value == pytest.approx(20, rel=1e-3)
    assert found["host.offload_gbytes_per_s"].value == pytest.approx(22, rel=1e-3)
    with pytest.raises(SmartGenError, match="stands for 2 systems"):
        fitted(path)


BW = """\
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : mlx5_0
 Number of qps   : 1\t\tTransport type : IB
 Link type       : Ethernet
---------------------------------------------------------------------------------------
 local address: LID 0000 QPN 0x0089 PSN 0x9d1bde RKey 0x1fff00 VAddr 0x007f1c
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 2          5000           0.066000           0.064000             4.000000
 64         5000             2.10               2.048000           4.000000
 65536      5000             24.30              24.25  \t\t   0.046253
 131072     5000             24.30              24.25              0.023127
---------------------------------------------------------------------------------------
"""

LAT = """\
                    RDMA_Write Latency Test
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    \
t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
Conflicting CPU frequency values detected: 1200.000000 != 3300.000000. CPU Frequency is not max.
 2       1000          1.80           9.00         2.00                2.01             0.10  \
         2.40                    3.10
 65536   1000          6.00           9.00         7.00                7.01             0.10  \
         7.40                    8.10
"""


def test_what_perftest_prints_is_read_as_it_is(file: File) -> None:
    found = fitted(file("bw.txt", BW), file("lat.txt", LAT), gbps="25")
    assert found["network.efficiency"].value == pytest.approx(0.97, rel=1e-6)
    assert found["network.pair_us"].value == pytest.approx(0.5, rel=1e-6)
    assert found["network.rtt_us"].value == pytest.approx(4.0, rel=1e-6)


def test_units_and_columns_of_other_versions_are_known(file: File) -> None:
    old = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]\n"
    rate = 25e9 / 8 * 0.96 / 2**20
    found = fitted(file("old.txt", f"{old} 65536      1000           1.0      {rate}\n"), gbps="25")
    assert found["network.efficiency"].value == pytest.approx(0.96, rel=1e-9)
    read = LAT.replace("RDMA_Write", "RDMA_Read")
    assert fitted(file("read.txt", read))["network.rtt_us"].value == pytest.approx(2.0)


def test_a_table_above_the_nominal_rate_is_of_another_link(file: File) -> None:
    write = file("ib_write_bw.csv", "bytes,bw_avg_gbps,msg_rate_mpps\n2,0.06,4\n65536,26,0.05\n")
    read = file("ib_read_bw.csv", "bytes,bw_avg_gbps,msg_rate_mpps\n65536,24,0.05\n")
    calibrated = done(write, read, gbps="25")
    assert calibrated.found.value("network.efficiency") == pytest.approx(0.96)
    assert any("WRITEs reach 1.040 of gbps=25" in note for note in calibrated.found.notes)
    assert done(write, gbps="25").found.value("network.efficiency") is None


# -- what is wrong with a file

WRONG = {
    "": "t.csv: is empty; it must be a table, of one of these: GEMM: m,n,k,latency_ms",
    "# source: me\n\n": "t.csv: is empty",
    "a,b\n1,2\n": "t.csv, line 1: 'a,b' is the header of no known table; there are GEMM",
    "# x\nm,n,k,latency_ms\n": "t.csv, line 2: no row follows the header",
    "m,n,k,latency_ms\n1,2,3\n": "t.csv, line 2: '1,2,3' has 3 fields; the header names 4: m,n,k,",
    "m,n,k,latency_ms\n1,2,3,4\n\n1,x,3,4\n": "t.csv, line 4: n='x' must be a positive number",
    "m,n,k,latency_ms\n1,2,3,-4\n": "t.csv, line 2: latency_ms='-4' must be a positive number",
    "m,n,k,latency_ms\n1,2,3,nan\n": "t.csv, line 2: latency_ms='nan' must be a positive number",
    "m,n,k,latency_ms\n1,2,3,inf\n": "t.csv, line 2: latency_ms='inf' must be a positive number",
    "m,n,k,latency_ms\n1,2,3,1e300\n": "latency_ms='1e300' must be a positive number",
    '"' + "m" * 200_000: "is the header of no known table",
    "system,gpu,pcie,direction,bytes,GBps\na,b,c,up,1,2\n": "direction='up' must be h2d or d2h",
    "m,n,k,latency_ms\n1,2,3,4\n": "matmul_tflops is not fitted: none of 1 rows has m >= 1024",
    BW.replace("BW Test", "Bidirectional BW Test"): "t.csv, line 2: a bidirectional test",
    BW.replace("24.30              24.25  ", "24.30  "): "has 4 fields; the header names 5",
    BW.replace("24.30              24.25  ", "24.30   x"): "BW average[Gb/sec]='x' must be a pos",
    BW.replace("Gb/sec", "KB/sec"): "BW average[KB/sec] must be in one of MB/sec, MiB/sec, Gb/sec",
    BW.partition(" 2  ")[0]: "t.csv: no row follows perftest's header",
    BW + BW.replace("Write", "Read"): "a second test, of read; give each test a file of its own",
    BW + LAT: "a second header; give each test a file of its own",
}


@pytest.mark.parametrize(("text", "told"), WRONG.items(), ids=range(len(WRONG)))
def test_what_is_wrong_with_a_file_is_told_in_one_line(file: File, text: str, told: str) -> None:
    with pytest.raises(SmartGenError) as error:
        fitted(file("t.csv", text))
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_folders_and_binary_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SmartGenError, match="is a folder; calibrate takes files"):
        read_table(tmp_path)
    for data in (b"\x89PNG\r\n\xff\xfe", b"m,n,k,latency_ms\n1,2,\x00,3\n"):
        (tmp_path / "b.csv").write_bytes(data)
        with pytest.raises(SmartGenError, match="is no text file"):
            read_table(tmp_path / "b.csv")
