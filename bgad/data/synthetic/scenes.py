"""Draws the two scenes of the demo data set as float arrays: cloth and a turned metal washer, normal or damaged.

Lengths are in units of 1/256 of the image side, so that a scene looks the same at every size. Arrays are (3, H, W),
with the colour first, because numpy is several times faster that way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from PIL import Image, ImageDraw

from bgad.types import FloatArray

UNITS = 256.0
Rng = np.random.Generator
Damage = Callable[[Rng, float], FloatArray]  # (generator, severity in (0, 1]) -> scene (3, H, W)
Line = tuple[FloatArray, float, float]  # points (n, 2) as x, y; width; strength in [0, 1]


class Scene(Protocol):
    """One normal scene with its random variation, and the defects that can be drawn into it."""

    gap: float  # two changed spots that are nearer than this are one defect
    names: tuple[str, ...]  # defect classes; the position in this tuple is part of the seed of each image
    defects: dict[str, Damage]
    clean: FloatArray  # (3, H, W), reflectance

    def __init__(self, rng: Rng, size: int) -> None: ...


def grid(size: int) -> tuple[FloatArray, FloatArray]:
    """Return x and y of each pixel centre, in units, relative to the middle of the image."""
    axis = ((np.arange(size, dtype=np.float32) + 0.5) / size - 0.5) * np.float32(UNITS)
    return np.broadcast_to(axis, (size, size)), np.broadcast_to(axis[:, None], (size, size))


def noise(rng: Rng, shape: tuple[int, int], cells: tuple[int, int]) -> FloatArray:
    """Draw smooth noise with about unit deviation: `cells` random values interpolated to `shape`."""
    rows, cols = cells
    coarse = rng.standard_normal((rows + 4, cols + 4), dtype=np.float32)
    box = (2, 2, cols + 2, rows + 2)
    fine = Image.fromarray(coarse).resize((shape[1], shape[0]), Image.Resampling.BICUBIC, box=box)
    return np.asarray(fine, np.float32) * np.float32(1.3)


def ramp(value: FloatArray, low: float, high: float) -> FloatArray:
    """Map values to 0 below `low` and 1 above `high`, smoothly in between; `low` may be the larger one."""
    t = np.clip((value - np.float32(low)) / np.float32(high - low), 0, 1)
    return np.asarray(t * t * (3 - 2 * t), np.float32)


def strokes(size: int, lines: Sequence[Line]) -> FloatArray:
    """Draw antialiased lines and return their coverage; where lines cross, the last one counts."""
    fine = 4 * size
    canvas = Image.new("L", (fine, fine))
    pen = ImageDraw.Draw(canvas)
    for points, width, strength in lines:
        xy = (points / UNITS + 0.5) * fine
        pen.line(
            [(float(a), float(b)) for a, b in xy],
            fill=round(255 * strength),
            width=max(1, round(width * fine / UNITS)),
            joint="curve",
        )
    return np.asarray(canvas.reduce(4), np.float32) * np.float32(1 / 255)


def curve(rng: Rng, middle: tuple[float, float], angle: float, length: float, bend: float) -> FloatArray:
    """Return the points of a line through `middle` at `angle` that wanders by about `bend` radians."""
    turns = angle + np.cumsum(rng.normal(0, bend / 5, 24)) + np.linspace(0, rng.normal(0, bend), 24)
    steps = np.stack([np.cos(turns), np.sin(turns)], axis=1) * (length / 24)  # (24, 2)
    path = np.concatenate([np.zeros((1, 2)), np.cumsum(steps, axis=0)])  # (25, 2)
    return np.asarray(path - path[12] + np.asarray(middle), np.float32)


def blob(rng: Rng, size: int, centre: tuple[float, float], radius: float, rough: float) -> FloatArray:
    """Return the distance from `centre` in an uneven, rotated ellipse: 1 at its rim."""
    x, y = grid(size)
    turn, aspect = rng.uniform(0, np.pi), rng.uniform(0.6, 1.0)
    c, s = np.float32(np.cos(turn)), np.float32(np.sin(turn))
    dx, dy = x - np.float32(centre[0]), y - np.float32(centre[1])
    far = np.hypot(dx * c + dy * s, (dy * c - dx * s) / np.float32(aspect)) / np.float32(radius)
    uneven = np.float32(rough) * noise(rng, (size, size), (14, 14)).clip(-1.6, 1.6)
    return np.asarray(far * (1 + uneven), np.float32)


def rgb(red: float, green: float, blue: float) -> FloatArray:
    """Return a colour (3, 1, 1) that multiplies (H, W) to (3, H, W)."""
    return np.asarray([red, green, blue], np.float32)[:, None, None]  # (3, 1, 1)


def tint(scene: FloatArray, amount: FloatArray, colour: FloatArray) -> FloatArray:
    """Multiply the scene by `colour` with the strength `amount` (H, W)."""
    return scene * (1 - amount * (1 - colour))


def lay(scene: FloatArray, cover: FloatArray, colour: FloatArray) -> FloatArray:
    """Blend `colour` over the scene with the opacity `cover` (H, W)."""
    return scene + cover * (colour - scene)


class Fabric:
    """Twill cloth that fills the image, with normal wear: slubs, lint, faint broad stains."""

    gap: float = 7.0  # a little less than the pitch of the threads
    names: tuple[str, ...] = ("broken_thread", "crease", "foreign_fibre", "knot", "stain")

    def __init__(self, rng: Rng, size: int) -> None:
        self.size = size
        x, y = grid(size)
        turn, shear = np.float32(rng.normal(0, 0.02)), np.float32(rng.normal(0, 0.015))
        pitch = 8.6 * rng.uniform(0.975, 1.025, 2)
        wave = [np.float32(0.09) * noise(rng, (size, size), (3, 3)) for _ in range(2)]
        self.u = (x + (turn + shear) * y) / np.float32(pitch[0]) + np.float32(rng.uniform(30, 33)) + wave[0]
        self.v = (y - turn * x) / np.float32(pitch[1]) + np.float32(rng.uniform(30, 33)) + wave[1]
        self.thick = [self._slubs(rng) for _ in range(2)]
        self.tone = [(1 + rng.normal(0, 0.03, 64)).astype(np.float32) for _ in range(2)]
        self.fibre = [noise(rng, (size, size), cells) for cells in ((size // 5, size), (size, size // 5))]
        self.light = (np.float32(rng.uniform(0.02, 0.12)), np.float32(rng.uniform(-0.12, -0.02)))
        self.warp = rgb(0.37, 0.43, 0.52) * np.float32(rng.uniform(0.97, 1.03))
        self.weft = rgb(0.60, 0.60, 0.58)
        self.faint = [
            (blob(rng, size, self._place(rng), rng.uniform(15, 45), 0.25), rng.uniform(0.02, 0.09))
            for _ in range(int(rng.random() < 0.6))
        ]
        self.lint = strokes(size, [self._lint(rng) for _ in range(rng.integers(1, 7))])
        self.clean = self._wear(self._weave(self.u, self.v, self.thick))
        self.defects: dict[str, Damage] = {name: getattr(self, f"_{name}") for name in self.names}

    def _slubs(self, rng: Rng) -> FloatArray:
        """Draw the relative width of each thread (rows) at every eighth of a pitch along it (columns)."""
        table = 1 + np.float32(0.03) * noise(rng, (64, 1), (64, 1))  # (64, 1)
        return np.asarray(table + 0.05 * noise(rng, (64, 512), (64, 40)).clip(-1.5, 2.5), np.float32)

    def _place(self, rng: Rng, margin: float = 22) -> tuple[float, float]:
        x, y = rng.uniform(margin - UNITS / 2, UNITS / 2 - margin, 2)
        return float(x), float(y)

    def _lint(self, rng: Rng) -> Line:
        path = curve(rng, self._place(rng, 4), rng.uniform(0, np.pi), rng.uniform(2, 15), 0.8)
        return path, rng.uniform(0.7, 1.1), rng.uniform(0.12, 0.4)

    def _wear(self, cloth: FloatArray) -> FloatArray:
        for far, strength in self.faint:
            cloth = tint(cloth, np.float32(strength) * ramp(far, 1.3, 0.4), rgb(0.3, 0.25, 0.1))
        return lay(cloth, self.lint, rgb(0.8, 0.8, 0.78))

    def _weave(self, u: FloatArray, v: FloatArray, thick: list[FloatArray]) -> FloatArray:
        """Draw the cloth at thread coordinates (u, v)."""
        rows = max(1, 8192 // self.size)  # in strips that fit the cache, which is twice as fast
        strips = [slice(k, k + rows) for k in range(0, self.size, rows)]
        return np.concatenate([self._strip(u[s], v[s], thick, s) for s in strips], axis=1)

    def _strip(self, u: FloatArray, v: FloatArray, thick: list[FloatArray], strip: slice) -> FloatArray:
        """Draw a strip of rows of the cloth: at each crossing the higher thread is visible, lit as a tube."""
        parts = []
        for side, (across, along) in enumerate(((u, v), (v, u))):
            thread = np.rint(across)
            number = thread.astype(np.int32) & 63
            cell = number * 512 + ((along * 8).astype(np.int32) & 511)
            wide = thick[side].take(cell) * np.float32(0.49)
            off = (across - thread) / np.maximum(wide, np.float32(0.02))
            tube = np.sqrt(np.clip(1 - off * off, 0, 1))
            phase = (along + thread) * np.float32(2 * np.pi / 3)
            lift = np.cos(phase) * np.float32(0.3 if side else -0.3)
            slope = np.sin(phase) * (self.light[1 - side] * np.float32(1 if side else -1))
            twist = np.sin((along * 2 + off * np.float32(0.5)) * np.float32(2 * np.pi)) * np.float32(0.03)
            shade = 0.62 + 0.38 * tube + self.light[side] * off + slope + 0.2 * lift
            shade += twist + np.float32(0.045) * self.fibre[side][strip]
            height = np.where(np.abs(off) < 1, lift + wide * tube, np.float32(-2))
            parts.append((height, shade * self.tone[side].take(number), ramp(np.abs(off), 1.1, 0.9)))
        (high_w, shade_w, cover_w), (high_f, shade_f, cover_f) = parts
        top = ramp(high_w - high_f, -0.08, 0.08)
        seen = np.maximum(cover_w * top, cover_f * (1 - top))
        yarn = (top * shade_w) * self.warp + ((1 - top) * shade_f) * self.weft
        return lay(rgb(0.1, 0.1, 0.1), seen, yarn)

    def _broken_thread(self, rng: Rng, severity: float) -> FloatArray:
        """One to three neighbouring threads are thin or missing over a length."""
        thick = [table.copy() for table in self.thick]
        side = int(rng.integers(2))
        row, col = (self.size * rng.uniform(0.1, 0.9, 2)).astype(np.intp)
        here = (self.u[row, col], self.v[row, col])
        thread, middle = round(float(here[side])), float(here[1 - side])
        half = rng.uniform(1.6, 5) if rng.random() < 0.7 else rng.uniform(5, 12)
        along = np.abs(np.arange(512, dtype=np.float32) / 8 - np.float32(middle))
        for step in range(int(rng.choice([1, 1, 1, 2, 3]))):
            gone = ramp(along, half * rng.uniform(0.8, 1.0) + 0.4, half * 0.8 - 0.2)
            thick[side][(thread + step) % 64] *= 1 - np.float32(0.6 + 0.4 * severity) * gone
        return self._wear(self._weave(self.u, self.v, thick))

    def _crease(self, rng: Rng, severity: float) -> FloatArray:
        """A fold: the cloth is drawn together along a line, one flank lit and one in shade."""
        x, y = grid(self.size)
        cx, cy = self._place(rng, 50)
        turn, half, width = rng.uniform(0, np.pi), rng.uniform(30, 95), rng.uniform(3, 6)
        c, s = np.float32(np.cos(turn)), np.float32(np.sin(turn))
        along = (x - np.float32(cx)) * c + (y - np.float32(cy)) * s
        bow = np.float32(rng.normal(0, 0.0015)) * along * along + noise(rng, along.shape, (5, 5))
        off = ((y - np.float32(cy)) * c - (x - np.float32(cx)) * s + bow) / np.float32(width)
        fold = np.exp(-off * off) * ramp(np.abs(along), half, half * 0.6)
        pull = off * fold * np.float32(0.15 + 0.4 * severity)
        cloth = self._weave(self.u - pull * s, self.v + pull * c, self.thick)
        flanks = off * np.float32(rng.choice([-1, 1])) + np.float32(0.35)
        return tint(self._wear(cloth), flanks * fold * np.float32(0.28 + 0.5 * severity), rgb(0, 0, 0))

    def _foreign_fibre(self, rng: Rng, severity: float) -> FloatArray:
        """A loose fibre of another make lies on the cloth and throws a thin shadow."""
        path = curve(rng, self._place(rng), rng.uniform(0, np.pi), rng.uniform(22, 80), 1.2)
        width = rng.uniform(1.2, 2.2)
        fibre = strokes(self.size, [(path, width, 0.4 + 0.55 * severity)])
        shadow = strokes(self.size, [(path + np.float32(1.2), width, 0.2 * severity)])
        colours = (rgb(0.85, 0.84, 0.80), rgb(0.12, 0.11, 0.12), rgb(0.62, 0.22, 0.18), rgb(0.72, 0.62, 0.30))
        return lay(tint(self.clean, shadow, rgb(0, 0, 0)), fibre, colours[int(rng.integers(4))])

    def _knot(self, rng: Rng, severity: float) -> FloatArray:
        """A lump of twisted yarn that pushes the threads around it aside."""
        x, y = grid(self.size)
        cx, cy = self._place(rng)
        radius = rng.uniform(6, 12)
        far = blob(rng, self.size, (cx, cy), radius, 0.12)
        dx, dy = (x - np.float32(cx)) / np.float32(radius), (y - np.float32(cy)) / np.float32(radius)
        push = ramp(far, 1.5, 0.6) * np.float32(0.4 * severity)
        cloth = self._wear(self._weave(self.u - push * dx, self.v - push * dy, self.thick))
        angle = np.float32(rng.uniform(0, 2 * np.pi))
        light = dx * np.cos(angle) + dy * np.sin(angle)
        dome = np.sqrt(np.clip(1 - far * far, 0, 1))
        coil = np.sin(np.hypot(dx, dy) * 10 + np.arctan2(dy, dx) * 2)
        shade = 0.62 + 0.3 * dome + 0.22 * light + 0.08 * coil + 0.05 * self.fibre[0]
        yarn = self.weft if rng.random() < 0.5 else self.warp
        shadow = ramp(far - np.float32(0.3) * light, 1.5, 0.8) * np.float32(0.35 * severity)
        cloth = tint(cloth, shadow, rgb(0, 0, 0))
        return lay(cloth, ramp(far, 1.05, 0.9) * np.float32(0.5 + 0.5 * severity), shade * yarn)

    def _stain(self, rng: Rng, severity: float) -> FloatArray:
        """Something spilt: stronger than wear, and with a rim where it dried."""
        far = blob(rng, self.size, self._place(rng), rng.uniform(11, 28), 0.22)
        rim = np.exp(-(((far - np.float32(0.92)) / np.float32(0.14)) ** 2)) * np.float32(0.5)
        colour = (rgb(0.35, 0.25, 0.1), rgb(0.3, 0.3, 0.35), rgb(0.55, 0.4, 0.1))[int(rng.integers(3))]
        amount = (ramp(far, 1.15, 0.75) * np.float32(0.7) + rim) * np.float32(0.25 + 0.55 * severity)
        return tint(self.clean, amount, colour)


# The stamp "M12": each glyph as lines in a box of width 0.8 and height 1.
STAMP = (
    (((0.0, 1.0), (0.0, 0.0), (0.4, 0.6), (0.8, 0.0), (0.8, 1.0)),),
    (((0.2, 0.25), (0.45, 0.0), (0.45, 1.0)),),
    (((0.0, 0.2), (0.3, 0.0), (0.6, 0.2), (0.6, 0.4), (0.0, 1.0), (0.7, 1.0)),),
)


class Washer:
    """A turned steel washer with a keyway and a stamp, at any angle on a dark belt; scuffed, dusty, tarnished."""

    gap: float = 2.0
    names: tuple[str, ...] = ("burr", "chip", "dent", "rust", "scratch")

    def __init__(self, rng: Rng, size: int) -> None:
        self.size = size
        x, y = grid(size)
        self.centre = (float(rng.normal(0, 4)), float(rng.normal(0, 4)))
        self.turn = rng.uniform(0, 2 * np.pi)
        self.outer, self.inner = rng.normal(92, 0.8), rng.normal(45, 0.4)
        lamp = rng.normal(-2.2, 0.2)
        self.light = (float(np.cos(lamp)), float(np.sin(lamp)))
        self.x, self.y = x - np.float32(self.centre[0]), y - np.float32(self.centre[1])
        self.r, self.angle = np.hypot(self.x, self.y), np.arctan2(self.y, self.x)
        c, s = np.float32(np.cos(self.turn)), np.float32(np.sin(self.turn))
        along = self.x * c + self.y * s
        key = np.maximum(np.abs(self.y * c - self.x * s) - 6, np.maximum(-along, along - np.float32(self.inner + 7)))
        self.body = np.minimum(self._ring(self.r), key)
        facing = np.abs(np.cos(self.angle - np.float32(lamp + rng.normal(0, 0.1))))
        grooves = noise(rng, (1, 800), (1, 260))[0].take((self.r * 4).astype(np.int32), mode="clip")
        patchy, rough = noise(rng, (size, size), (5, 5)), noise(rng, (size, size), (size // 2, size // 2))
        near = facing * facing
        self.face = 0.5 + 0.18 * near * near * near + 0.04 * facing + 0.012 * patchy
        self.face += grooves * (0.018 + 0.03 * near)
        self.face += np.float32(0.012) * rough
        belt = 0.2 + np.float32(0.012) * noise(rng, (size, size), (size, size // 8))
        belt += np.float32(0.01) * patchy + np.float32(0.02) * rough
        sx, sy = self.x + np.float32(4 * self.light[0]), self.y + np.float32(4 * self.light[1])
        away = np.hypot(sx, sy)
        shade = ramp(self._ring(away), -5, 4)
        self.belt = belt * (1 - np.float32(0.6) * shade) * rgb(0.95, 1.0, 0.93)
        self.stamp = strokes(size, self._stamp()) * np.float32(rng.uniform(0.7, 1.0))
        self.scuffs = strokes(size, [self._scuff(rng) for _ in range(rng.integers(2, 10))])
        clouds = patchy + noise(rng, (size, size), (9, 9))
        self.tarnish = ramp(clouds, 0.8, 3.5) * np.float32(rng.uniform(0.0, 0.3))
        self.dust = strokes(size, [self._speck(rng) for _ in range(rng.integers(4, 22))])
        self.clean = self._render(self.body, -self.stamp)
        self.defects: dict[str, Damage] = {name: getattr(self, f"_{name}") for name in self.names}

    def _ring(self, r: FloatArray) -> FloatArray:
        """Return how far a point at radius `r` lies inside the plain ring; negative outside."""
        return np.asarray(np.minimum(np.float32(self.outer) - r, r - np.float32(self.inner)), np.float32)

    def _at(self, radius: float, angle: float) -> tuple[float, float]:
        return self.centre[0] + radius * float(np.cos(angle)), self.centre[1] + radius * float(np.sin(angle))

    def _spot(self, rng: Rng, margin: float) -> tuple[float, float]:
        return self._at(rng.uniform(self.inner + margin, self.outer - margin), rng.uniform(0, 2 * np.pi))

    def _stamp(self) -> list[Line]:
        """Return the lines of the lettering on an arc opposite the keyway, and of two short bars beside it."""
        lines: list[Line] = []
        for number, glyph in enumerate(STAMP):
            for line in glyph:
                at = [self._polar(a / 5.2 + number * 0.22 - 0.3, 7 - 14 * b) for a, b in line]
                lines.append((np.asarray(at, np.float32), 1.7, 1.0))
        bars = [np.asarray([self._polar(side, -6), self._polar(side, 6)], np.float32) for side in (1.9, -1.9)]
        return [*lines, *((bar, 2.2, 1.0) for bar in bars)]

    def _polar(self, angle: float, off: float) -> tuple[float, float]:
        return self._at((self.inner + self.outer) / 2 + off, self.turn + np.pi + angle)

    def _scuff(self, rng: Rng) -> Line:
        length = rng.uniform(4, 24)
        path = curve(rng, self._spot(rng, 8), rng.uniform(0, np.pi), length, 0.3)
        return path, rng.uniform(0.6, 1.4), rng.uniform(0.1, 0.5)

    def _speck(self, rng: Rng) -> Line:
        x, y = rng.uniform(-126, 126, 2)
        path = np.asarray([[x, y], [x + rng.normal(0, 1.2), y + rng.normal(0, 1.2)]], np.float32)
        return path, rng.uniform(0.8, 2.2), rng.uniform(0.2, 0.8)

    def _slope(self, height: FloatArray) -> FloatArray:
        """Return the slope of a surface towards the lamp, in units of height per unit of length."""
        rows, cols = np.gradient(height, UNITS / self.size)
        return np.asarray(-(cols * self.light[0] + rows * self.light[1]), np.float32)

    def _render(self, body: FloatArray, height: FloatArray) -> FloatArray:
        """Draw the washer whose edge is where `body` is 0, with the relief `height` on its face."""
        bevel = self._slope(np.clip(body, -2, 5))
        edge = ramp(body, 5, 3.5) * np.float32(0.85)
        steel = self.face + edge * (0.5 + 0.34 * bevel - self.face)
        relief = np.clip(self._slope(height), -1.5, 1.5)
        steel = steel + np.float32(0.2) * relief + np.float32(0.1) * np.minimum(height, 0).clip(-1.5)
        steel = steel + self.scuffs * (np.float32(0.13) * np.sign(self.face - np.float32(0.45)))
        metal = tint(steel * rgb(1.0, 1.0, 1.02), self.tarnish, rgb(0.75, 0.62, 0.45))
        cover = np.clip(body * np.float32(self.size / UNITS) + np.float32(0.5), 0, 1)
        return lay(lay(self.belt, cover, metal), self.dust * np.float32(0.5), rgb(0.62, 0.61, 0.58))

    def _burr(self, rng: Rng, severity: float) -> FloatArray:
        """Torn metal that stands out over the rim."""
        outside = rng.random() < 0.6
        rim = np.float32(self.outer if outside else self.inner)
        middle = self.turn + rng.uniform(0.5, 2 * np.pi - 0.5)
        turned = np.mod(self.angle - np.float32(middle - np.pi), np.float32(2 * np.pi))
        off = (turned - np.float32(np.pi)) * rim  # along the rim, from the middle of the burr
        half = rng.uniform(5, 13)
        jagged = noise(rng, (1, 256), (1, 80))[0].take((off * 4 + 128).astype(np.int32), mode="clip")
        tall = ramp(np.abs(off), half, 0) * (1 + np.float32(0.35) * jagged) * np.float32(2.2 + 3.8 * severity)
        beyond = self.r - rim if outside else rim - self.r
        lip = np.minimum(tall - beyond, beyond + np.float32(3))
        cover = ramp(lip, -0.5, 0.6)
        shade = 0.5 + 0.25 * severity + 0.08 * noise(rng, self.r.shape, (64, 64)) + 0.1 * self._slope(lip)
        return lay(self.clean, cover * ramp(tall, 0.3, 1.2), shade * rgb(1, 1, 1))

    def _chip(self, rng: Rng, severity: float) -> FloatArray:
        """A bite out of the outer or inner rim."""
        outside = rng.random() < 0.65
        radius = rng.uniform(4, 7) + 5 * severity
        depth = rng.uniform(0.0, 0.35) * radius
        rim = self.outer + depth if outside else self.inner - depth
        centre = self._at(rim, self.turn + rng.uniform(0.5, 2 * np.pi - 0.5))
        bite = (blob(rng, self.size, centre, radius, 0.16) - 1) * np.float32(radius)
        return self._render(np.minimum(self.body, bite), -self.stamp)

    def _dent(self, rng: Rng, severity: float) -> FloatArray:
        """A shallow hollow in the face: one side dark, the other bright."""
        radius = rng.uniform(6, 12)
        far = blob(rng, self.size, self._spot(rng, 13), radius, 0.08)
        hollow = ramp(far, 1.1, 0.1) * np.float32(radius * (0.16 + 0.4 * severity))
        return self._render(self.body, -self.stamp - hollow)

    def _rust(self, rng: Rng, severity: float) -> FloatArray:
        """Mottled brown patches on the steel."""
        far = blob(rng, self.size, self._spot(rng, 6), rng.uniform(6, 19), 0.3)
        grain = noise(rng, self.r.shape, (70, 70))
        amount = ramp(far + np.float32(0.2) * grain, 1.1, 0.6) * np.float32(0.15 + 0.75 * severity)
        colour = (0.72 + 0.06 * grain) * rgb(1.0, 0.66, 0.42)
        return tint(self.clean, amount * ramp(self.body, -0.5, 0.5), colour)

    def _scratch(self, rng: Rng, severity: float) -> FloatArray:
        """A long sharp groove."""
        length = rng.uniform(28, 75)
        path = curve(rng, self._spot(rng, 12), rng.uniform(0, np.pi), length, 0.12)
        groove = strokes(self.size, [(path, rng.uniform(0.8, 1.6), 1.0)]) * ramp(self.body, 0, 1)
        shine = rng.choice([-0.3, 0.4]) * (0.35 + 0.65 * severity)
        return self.clean + groove * np.float32(shine)
