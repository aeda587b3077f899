"""The text of a random program: a file that stands alone, with `make` for its arguments and `fn`."""

from __future__ import annotations

from dataclasses import replace

from tests.fuzz.choices import FEATURES, Choices

_PLAIN_LETTERS = ("bhqd,bhkd->bhqk", "bhqk,bhke->bhqe")
_FIVE_LETTERS = ("bhgqd,bhgkd->bhgqk", "bhgqk,bhgke->bhgqe")


class _Writer:
    """Collects the arguments (name, text of their value) and lines of one program."""

    def __init__(self, c: Choices) -> None:
        self.c = c
        self.arguments: dict[str, str] = {}
        self.lines: list[str] = []
        self.HQ = c.H * c.G
        self.needs_positions = False

    # -- Small texts

    def argument(self, name: str, value: str) -> str:
        self.arguments.setdefault(name, value)
        return name

    def random(self, name: str, *shape: str, gain: str = "") -> str:
        size = ", ".join(shape) + ("," if len(shape) == 1 else "")
        return self.argument(name, f"rand(({size})){gain}")

    def say(self, line: str) -> None:
        self.lines.append(line)

    def per_head(self, name: str) -> str:
        """A vector of query heads against scores."""
        return f"{name}.view(H, G, 1, 1)" if self.c.is_five else f"{name}[:, None, None]"

    def per_sample(self, text: str) -> str:
        """[B, S or 1, T] against scores."""
        return f"{text}[:, None, None]" if self.c.is_five else f"{text}[:, None]"

    @property
    def keys(self) -> str:
        """How many keys there are in the end, in terms of the arguments' sizes."""
        return f"T + {self.c.more_keys}" if self.c.more_keys else "T"

    def positions(self) -> None:
        if not self.needs_positions:
            self.needs_positions = True
            self.say("i = torch.arange(S, device=q.device)[:, None]")
            self.say("j = torch.arange(T, device=q.device)[None, :]")

    # -- Parts

    def run(self) -> str:
        c = self.c
        self._inputs()
        self._prepare("q", "k")
        if c.two in ("difference", "difference_of_weights", "added"):
            self._second()
        self._share_heads()
        names = [("q", "k", "")]
        if c.two in ("difference", "difference_of_weights", "added"):
            names.append(("q2", "k2", "2"))
        self.say(f"S, T = q.shape[{self._rows}], k.shape[{self._rows}]")
        for q, k, n in names:
            self._scores(q, k, f"s{n}")
        if c.two == "two_masks":
            self.say("s2 = s")
            self.positions()
            self.say("s2 = torch.where((i - j).abs() <= 2, s2, -torch.inf)")
            names.append(("q", "k", "2"))
        for _, _, n in names:
            self._weights(f"s{n}", f"p{n}", n)
        self._outputs()
        return self._file()

    @property
    def _rows(self) -> int:
        return 1 if self.c.layout == "bshd_einsum" else -2

    def _inputs(self) -> None:
        c = self.c
        match c.layout:
            case "bhsd":
                self.random("q", "B", "H * G", "S", "D", gain=_gain(c))
                self.random("k", "B", "H", "T", "D", gain=_offset(c))
                self.random("v", "B", "H", "T", "E", gain=_offset(c))
            case "bshd" | "bshd_einsum":
                self.random("q", "B", "S", "H * G", "D", gain=_gain(c))
                self.random("k", "B", "T", "H", "D", gain=_offset(c))
                self.random("v", "B", "T", "H", "E", gain=_offset(c))
                if c.layout == "bshd":
                    self.say("q, k, v = (x.transpose(1, 2) for x in (q, k, v))")
            case "packed":
                self.random("x", "B", "S", "(H * G + 2 * H) * D", gain=_gain(c))
                self.say("q, k, v = x.split([H * G * D, H * D, H * D], -1)")
                self.say("q = q.view(B, -1, H * G, D).transpose(1, 2)")
                self.say("k, v = (t.view(B, -1, H, D).transpose(1, 2) for t in (k, v))")
            case "split_heads":
                self.random("q", "B", "S", "H * G * D", gain=_gain(c))
                self.random("k", "B", "T", "H * D", gain=_offset(c))
                self.random("v", "B", "T", "H * E", gain=_offset(c))
                self.say("q = q.view(B, -1, H * G, D).permute(0, 2, 1, 3)")
                self.say("k = k.unflatten(-1, (H, D)).permute(0, 2, 1, 3)")
                self.say("v = v.reshape(B, -1, H, E).permute(0, 2, 1, 3).contiguous()")
            case "keys_transposed":
                self.random("q", "B", "H * G", "S", "D", gain=_gain(c))
                self.random("kt", "B", "H", "D", "T", gain=_offset(c))
                self.random("v", "B", "H", "T", "E", gain=_offset(c))
                self.say("k = kt.mT")
            case "sliced":
                self.random("q", "B", "H * G", "S + 4", "D + 2", gain=_gain(c))
                self.random("k", "B", "H + 1", "T", "D + 1", gain=_offset(c))
                self.random("v", "B", "H", "T + 2", "2 * E", gain=_offset(c))
                self.say("q = q[:, :, 2:-2, 1:-1]")
                self.say("k = k[:, 1:, :, :-1]")
                self.say("v = v.narrow(2, 1, v.shape[2] - 2).chunk(2, -1)[1]")
            case "strided":
                self.random("q", "B", "H * G", "2 * S", "D", gain=_gain(c))
                self.random("k", "B", "H", "T", "2 * D", gain=_offset(c))
                self.random("v", "B", "H", "T", "E", "2", gain=_offset(c))
                self.say("q = q[:, :, ::2]")
                self.say("k = k[..., 1::2]")
                self.say("v = v.unbind(-1)[0]")
            case _:
                assert c.layout == "projected"
                self.random("x", "B", "S", "5", gain=_gain(c))
                self.random("y", "B", "T", "5", gain=_offset(c))
                self.random("wq", "5", "H * G * D", gain=" * 0.5")
                self.random("wk", "5", "H * D", gain=" * 0.5")
                self.random("wv", "5", "H * E", gain=" * 0.5")
                self.say("q = (x @ wq).view(B, -1, H * G, D).transpose(1, 2)")
                self.say("k = (y @ wk).view(B, -1, H, D).transpose(1, 2)")
                self.say("v = (y @ wv).view(B, -1, H, E).transpose(1, 2)")

    def _second(self) -> None:
        """Queries and keys of a second attention, in the layout that the first have by now."""
        rows = ("S", "H * G") if self.c.layout == "bshd_einsum" else ("H * G", "S")
        keys = ("T", "H") if self.c.layout == "bshd_einsum" else ("H", "T")
        self.random("q2", "B", *rows, "D")
        self.random("k2", "B", *keys, "D")
        if self.c.more_keys:
            axis = 2 if rows[0] != "S" else 1
            shape = ["B", *keys[1:], "D"] if axis == 1 else ["B", "H", "D"]
            shape.insert(axis, str(self.c.more_keys))
            self.random("mk2", *shape)
            self.say(f"k2 = torch.cat([k2, mk2], {axis})")
        if self.c.prepare == "shared_features":
            self.say("k2, q2 = F.pad(k2, (0, 2)), F.pad(q2, (0, 2))")

    def _prepare(self, q: str, k: str) -> None:
        c, row = self.c, 1 if self.c.layout == "bshd_einsum" else 2
        match c.prepare:
            case "rotated":
                self.random("angles", "max(S, T)", "D // 2")
                axis = "[:, None]" if row == 1 else ""
                for x in (q, k):
                    self.say(f"c = angles[: {x}.shape[{row}]]{axis}.cos()")
                    self.say(f"n = angles[: {x}.shape[{row}]]{axis}.sin()")
                    self.say(f"a, b = {x}.chunk(2, -1)")
                    self.say(f"{x} = torch.cat([a * c - b * n, a * n + b * c], -1)")
            case "normalised":
                self.random("gain", "D")
                for x in (q, k):
                    self.say(
                        f"{x} = {x} * torch.rsqrt({x}.pow(2).mean(-1, keepdim=True) + 1e-6) * gain"
                    )
            case "unit":
                self.say(f"{q}, {k} = F.normalize({q}, dim=-1), F.normalize({k}, dim=-1)")
            case "feature_map":
                self.say(f"{q}, {k} = F.elu({q}) + 1, F.elu({k}) + 1")
            case "memory_keys":
                shape = ("B", "2", "H") if row == 1 else ("B", "H", "2")
                self.random("mk", *shape, "D")
                self.random("mv", *shape, "E")
                self.say(f"k = torch.cat([k, mk[{':, ' * row}:1]], {row})")
                self.say(f"v = torch.cat([v, mv[{':, ' * row}1:]], {row})")
            case "prefix_keys":
                shape = ("B", "3", "H") if row == 1 else ("B", "H", "3")
                self.random("mk", *shape, "D")
                self.random("mv", *shape, "E")
                self.say(f"k, v = torch.cat([mk, k], {row}), torch.cat([mv, v], {row})")
            case "null_key":
                self.random("mk", "H", "D")
                self.random("mv", "H", "E")
                for x, m, width in (("k", "mk", "D"), ("v", "mv", "E")):
                    shape = f"(B, 1, H, {width})" if row == 1 else f"(B, H, 1, {width})"
                    at = "None, None" if row == 1 else "None, :, None"
                    self.say(f"{x} = torch.cat([{m}[{at}].expand{shape}, {x}], {row})")
            case "padded":
                self.say(f"k, v = (F.pad(t, ({'0, 0, ' * (3 - row)}1, 1)) for t in (k, v))")
            case "shared_features":
                rows = ("S", "H * G") if row == 1 else ("H * G", "S")
                keys = ("T", "1") if row == 1 else ("1", "T")
                self.random("qr", "B", *rows, "2")
                self.random("kr", "B", *keys, "2")
                axis = "-1, -1, H, -1" if row == 1 else "-1, H, -1, -1"
                self.say(f"q, k = torch.cat([q, qr], -1), torch.cat([k, kr.expand({axis})], -1)")
            case "quantised":
                self.say("step = k.detach().abs().amax() / 100 + 1e-6")
                self.say(
                    "k = (k / step).round().clamp(-127, 127).to(torch.int8).to(q.dtype) * step"
                )
            case "flipped":
                self.say(f"k, v = k.flip({row}), v.roll(1, {row})")

    def _share_heads(self) -> None:
        c = self.c
        if c.G == 1:
            return
        qs, ks = ["q"], ["k", "v"]
        if c.two in ("difference", "difference_of_weights", "added"):
            qs.append("q2")
            ks.append("k2")
        axis = 2 if c.layout == "bshd_einsum" else 1
        for x in ks:
            match c.sharing:
                case "repeat_interleave":
                    self.say(f"{x} = {x}.repeat_interleave(G, {axis})")
                case "expand_reshape":
                    at = ":, " * (axis + 1)
                    wide = "-1, " * (axis + 1) + "G" + ", -1" * (3 - axis)
                    self.say(f"{x} = {x}[{at}None].expand({wide}).flatten({axis}, {axis + 1})")
                case _:
                    self.say(f"{x} = {x}[:, :, None]")
        if c.is_five:
            for x in qs:
                self.say(f"{x} = {x}.unflatten(1, (H, G))")

    # -- Scores

    def _scores(self, q: str, k: str, s: str) -> None:
        c = self.c
        letters = _FIVE_LETTERS if c.is_five else _PLAIN_LETTERS
        if c.layout == "bshd_einsum":
            letters = ("bqhd,bkhd->bhqk", "bhqk,bkhe->bqhe")
        match c.scale:
            case "on_queries":
                self.say(f"{q} = {q} * D**-0.5")
            case "odd_on_queries":
                self.say(f"{q} = {q} * 0.0883883461356163")
            case "on_keys":
                self.say(f"{k} = {k} * D**-0.5")
            case "both_roots":
                self.say(f"{q}, {k} = {q} * D**-0.25, {k} * D**-0.25")
        match c.scores:
            case "matmul":
                self.say(f"{s} = {q} @ {k}.transpose(-1, -2)")
            case "linear":
                self.say(f"{s} = torch.matmul({q}, {k}.mT)")
            case "einsum":
                wide = f"{k}.expand(-1, -1, G, -1, -1)" if c.is_five else k
                self.say(f"{s} = torch.einsum('{letters[0]}', {q}, {wide})")
            case "bmm":
                self.say(f"{s} = torch.bmm({q}.flatten(0, 1), {k}.flatten(0, 1).mT)")
                self.say(f"{s} = {s}.view(B, H * G, {q}.shape[-2], {k}.shape[-2])")
            case "baddbmm":
                self.random("row", "1", "1", self.keys)
                self.say(
                    f"{s} = torch.baddbmm(row, {q}.flatten(0, 1), {k}.flatten(0, 1).mT, beta=0.5, alpha=0.7)"
                )
                self.say(f"{s} = {s}.unflatten(0, (B, H * G))")
            case "distance":
                self.say(f"{s} = -({q}[..., :, None, :] - {k}[..., None, :, :]).square().sum(-1)")
            case "additive":
                self.random("wt", "D + 2" if c.prepare == "shared_features" else "D")
                self.say(f"{s} = torch.tanh({q}.unsqueeze(-2) + {k}.unsqueeze(-3)) @ wt")
            case "cosine":
                self.say(
                    f"{s} = 3 * F.cosine_similarity({q}[..., :, None, :], {k}[..., None, :, :], dim=-1)"
                )
            case _:
                self.say(f"{s} = ({q}[..., :, None, :] * {k}[..., None, :, :]).sum(-1)")
        match c.scale:
            case "on_scores":
                self.say(f"{s} = {s} * D**-0.5")
            case "divided":
                self.say(f"{s} = {s} / math.sqrt(D)")
            case "odd":
                self.say(f"{s} = {s} * 0.0883883461356163")
            case "negative":
                self.say(f"{s} = {s} * -0.3")
            case "learned":
                self.random("scale", "H * G", gain=".abs()")
                self.say(f"{s} = {s} * {self.per_head('scale')}")
        steps = {
            "plain": ("bias", "cap", "mask"),
            "mask_first": ("mask", "bias", "cap"),
            "cap_first": ("cap", "bias", "mask"),
            "bias_last": ("cap", "mask", "bias"),
            "masked_twice": ("mask", "bias", "cap", "again"),
        }[c.order]
        for step in steps:
            {"bias": self._bias, "cap": self._cap, "mask": self._mask, "again": self._again}[step](
                s
            )

    def _bias(self, s: str) -> None:
        T = self.keys
        match self.c.bias:
            case "pair":
                self.random("bias", "S", T)
                self.say(f"{s} = {s} + bias")
            case "full":
                self.random("bias", "B", "1", "S", T)
                five = "[:, None]" if self.c.is_five else ""
                self.say(f"{s} = {s} + bias{five}")
            case "per_head":
                self.random("bias", "H * G", "S", T)
                five = ".unflatten(0, (H, G))" if self.c.is_five else ""
                self.say(f"{s} = {s} + bias{five}")
            case "per_key":
                self.random("bias", "B", T)
                self.say(f"{s} = {s} + {self.per_sample('bias[:, None, :]')}")
            case "table":
                self.random("table", "2 * 4 + 1", "H * G")
                self.positions()
                found = "table[(j - i).clamp(-4, 4) + 4].permute(2, 0, 1)"
                five = ".unflatten(0, (H, G))" if self.c.is_five else ""
                self.say(f"{s} = {s} + {found}{five}")
            case "alibi" | "alibi_signed":
                self.random("slopes", "H * G", gain=".abs()")
                self.positions()
                far = "(j - i)" if self.c.bias == "alibi_signed" else "-(i - j).abs()"
                self.say(f"{s} = {s} + {self.per_head('slopes')} * {far}")
            case "buckets":
                self.argument("buckets", f"torch.randint(0, 6, (S, {T}), generator=gen)")
                self.random("table", "6", "H * G")
                five = ".unflatten(0, (H, G))" if self.c.is_five else ""
                found = "F.embedding(buckets, table).permute(2, 0, 1)"
                self.say(f"{s} = {s} + {found}{five}")
            case "distance":
                self.random("xs", "B", "S", "3")
                self.random("ys", "B", T, "3")
                far = "(xs[:, :, None] - ys[:, None]).pow(2).sum(-1)"
                self.say(f"{s} = {s} - 0.5 * {self.per_sample(far)}")

            case "ramps":
                self.random("far", "3")
                self.random("ramps", "3", "H * G")
                self.positions()
                self._contracted(s, "torch.relu((j - i)[..., None] * far + far[0])", "ramps")
            case "gaussians":
                self.random("xs", "S", "3")
                self.random("ys", T, "3")
                self.random("means", "4", gain=".abs()")
                self.random("peaks", "4", "H * G")
                self.say("near = (xs[:, None] - ys).pow(2).sum(-1)[..., None] - means")
                self._contracted(s, "torch.exp(-(near ** 2))", "peaks")

    def _contracted(self, s: str, features: str, weights: str) -> None:
        """A bias for each head from features of each pair."""
        five = ".unflatten(0, (H, G))" if self.c.is_five else ""
        self.say(f"{s} = {s} + ({features} @ {weights}).permute(2, 0, 1){five}")

    def mixed(self, x: str) -> str:
        """Weighted sums of what heads have."""
        self.random("mix", "H * G", "H * G")
        flat, five = (".flatten(1, 2)", ".unflatten(1, (H, G))") if self.c.is_five else ("", "")
        return f"torch.einsum('gh,bhij->bgij', mix, {x}{flat}){five}"

    def _cap(self, s: str) -> None:
        match self.c.cap:
            case "mixed_heads":
                self.say(f"{s} = {self.mixed(s)}")
            case "tanh":
                self.say(f"{s} = 5 * torch.tanh({s} / 5)")
            case "temperature":
                self.random("heat", "H * G", gain=".exp()")
                self.say(f"{s} = {s} / {self.per_head('heat')}")
            case "square":
                self.say(f"{s} = {s} * {s}.abs() * 0.1")
            case "clamp":
                self.say(f"{s} = {s}.clamp(-1.5, 1.5)")
            case "row_temperature":
                self.random("heat", "B", "S", gain=".exp()")
                self.say(f"{s} = {s} * {self.per_sample('heat[:, :, None]')}")

    def _keep(self) -> str | None:
        """Define `keep`, if the program has a mask of bools."""
        c = self.c
        R = c.reach
        text = {
            "causal": "j <= i",
            "bottom_right": "j <= i + (T - S)",
            "window": f"(j <= i) & (i - j < {R + 1})",
            "band": f"(i - j).abs() <= {R}",
            "prefix": f"(j <= i) | (j < {R})",
            "blocks": f"i // {R + 2} == j // {R + 2}",
            "dilated": f"(i - j) % {R + 1} == 0",
            "ones_triu": f"torch.ones(S, T, dtype=torch.bool, device=q.device).triu(-{R})",
            "several": "torch.logical_or(j <= i, torch.logical_or(j < 1, (i + j) % 5 == 0))",
            "after": f"j >= i + {R}",
            "late_window": f"(j >= i + {R}) & (j < i + {2 * R + 3})",
            "late_rows": f"(j <= i) & (i >= {R})",
        }.get(c.mask)
        if text is not None:
            self.positions()
            return text
        T = self.keys
        match c.mask:
            case "ids" | "ids_causal":
                self.argument("ids", "torch.randint(0, 3, (B, S), generator=gen)")
                self.argument("key_ids", f"torch.randint(0, 3, (B, {T}), generator=gen)")
                text = self.per_sample("(ids[:, :, None] == key_ids[:, None, :])")
                if c.mask == "ids_causal":
                    self.positions()
                    text += " & (j <= i)"
                return text
            case "lengths":
                self.argument("lengths", f"torch.randint(0, {T} + 1, (B,), generator=gen)")
                self.positions()
                return self.per_sample("(j < lengths[:, None, None])")
            case "dense":
                self.argument("dense", f"torch.rand((S, {T}), generator=gen) < 0.7")
                return "dense"
            case "dense_full":
                self.argument("dense", f"torch.rand((B, 1, S, {T}), generator=gen) < 0.5")
                return "dense[:, None]" if c.is_five else "dense"
            case "dense_heads":
                self.argument("dense", f"torch.rand((H * G, S, {T}), generator=gen) < 0.6")
                return "dense.unflatten(0, (H, G))" if c.is_five else "dense"
            case "starts":
                self.argument("starts", "torch.rand((B, S), generator=gen) < 0.2")
                self.say("ids = starts.cumsum(-1)")
                return self.per_sample("(ids.unsqueeze(-1) == ids.unsqueeze(-2))")
            case "sorted_ids":
                self.argument("ids", "torch.randint(0, 4, (B, S), generator=gen).sort(-1).values")
                self.argument(
                    "key_ids", f"torch.randint(0, 4, (B, {T}), generator=gen).sort(-1).values"
                )
                return self.per_sample("torch.eq(ids[:, :, None], key_ids[:, None, :])")
            case "head_window":
                self.argument("reach", "torch.randint(0, 5, (H * G,), generator=gen)")
                self.positions()
                return f"(i - j).abs() <= {self.per_head('reach')}"
            case "ranges":
                self.argument("first", "torch.randint(0, T, (B, S), generator=gen)")
                self.positions()
                start = "first[:, :, None]"
                return self.per_sample(f"((j >= {start}) & (j < {start} + {R + 2}))")
            case "left_padding":
                self.argument("skipped", f"torch.randint(0, {T} + 1, (B,), generator=gen)")
                self.positions()
                return self.per_sample("(j >= skipped[:, None, None])")
            case "late_dense":
                late = f"(torch.arange({T}) >= min({R}, {T} - 1))"
                self.argument("dense", f"(torch.rand((S, {T}), generator=gen) < 0.7) & {late}")
                return "dense"
        return None

    def _fill(self, s: str) -> str:
        if self.c.dtype == "float16" and self.c.fill == "-1e9":
            return "-6e4"
        return {
            "-inf": "-torch.inf", "min": f"torch.finfo({s}.dtype).min", "-1e9": "-1e9", "-1e4": "-1e4",
        }[self.c.fill]  # fmt: skip

    def _again(self, s: str) -> None:
        """What is not masked yet and late, with the same fill."""
        self.positions()
        self.say(f"{s} = {s}.masked_fill(j > i, {self._fill(s)})")

    def _mask(self, s: str) -> None:
        c = self.c
        fill = self._fill(s)
        if c.mask == "additive":
            T = self.keys
            value = "-torch.inf" if c.fill == "-inf" else "-1e4"
            self.argument(
                "added",
                f"torch.zeros(S, {T}, dtype=dtype).masked_fill(torch.rand((S, {T}), generator=gen) < 0.3, {value})",
            )
            self.say(f"{s} = {s} + added")
            return
        keep = self._keep()
        if keep is None:
            return
        self.say(f"keep = {keep}")
        match c.masking:
            case "masked_fill":
                self.say(f"{s} = {s}.masked_fill(~keep, {fill})")
            case "where":
                self.say(f"{s} = torch.where(keep, {s}, {fill})")
            case "float_times_fill":
                number = "-1e4" if fill == "-torch.inf" else fill
                self.say(f"{s} = {s} + (1.0 - keep.to({s}.dtype)) * {number}")
            case "log_of_mask":
                self.say(f"{s} = {s} + torch.log(keep.to({s}.dtype))")
            case "chain":
                self.positions()
                self.say(f"{s} = {s}.masked_fill(~keep, -1e4).masked_fill(j > i + 3, {fill})")
            case "in_place":
                self.say(f"{s} = {s}.clone()")
                self.say(f"{s}.masked_fill_(~keep, {fill}).mul_(1.0)")
            case "add":
                if fill.startswith("torch.finfo"):
                    fill = "-1e4"
                self.say(
                    f"{s} = {s} + torch.zeros_like({s}).masked_fill(torch.logical_not(keep), {fill})"
                )

    # -- Weights

    def _weights(self, s: str, p: str, n: str) -> None:
        w, m = f"w{n}", f"m{n}"
        total = f"{w}.sum(-1, keepdim=True)"
        match self.c.weights:
            case "softmax":
                self.say(f"{p} = F.softmax({s}, dim=-1)")
            case "handmade":
                self.say(f"{w} = torch.exp({s} - {s}.amax(-1, keepdim=True))")
                self.say(f"{p} = {w} / {total}")
            case "no_shift":
                self.say(f"{w} = {s}.exp()")
                self.say(f"{p} = {w} / {total}")
            case "mean_shift":
                self.say(f"{w} = torch.exp({s} - {s}.mean(-1, keepdim=True))")
                self.say(f"{p} = {w} / {total}")
            case "clamped_shift":
                self.say(f"{m} = {s}.amax(-1, keepdim=True).clamp(min=0.0)")
                self.say(f"{w} = torch.exp({s} - {m})")
                self.say(f"{p} = {w} / ({total} + 1e-6)")
            case "log_softmax":
                self.say(f"{p} = F.log_softmax({s}, -1).exp()")
            case "minus_lse":
                self.say(f"{p} = torch.exp({s} - torch.logsumexp({s}, -1, keepdim=True))")
            case "late":
                self.say(f"{p} = torch.exp({s} - {s}.max(-1, keepdim=True).values)")
            case "sink":
                self.random("sink", "H * G")
                self.say(f"c = {self.per_head('sink')}.expand(*{s}.shape[:-1], 1)")
                self.say(f"{p} = torch.cat([{s}, c], -1).softmax(-1)[..., :-1]")
            case "plus_one":
                self.say(f"{m} = {s}.amax(-1, keepdim=True)")
                self.say(f"{w} = torch.exp({s} - {m})")
                self.say(f"{p} = {w} / ({total} + torch.exp(-{m}))")
            case "in_float":
                self.say(f"{p} = torch.softmax({s}, -1, dtype=torch.float32).to({s}.dtype)")
            case "softpick":
                self.say(f"{m} = {s}.amax(-1, keepdim=True)")
                self.say(f"{w} = torch.exp({s} - {m}) - torch.exp(-{m})")
                self.say(f"{p} = F.relu({w}) / ({w}.abs().sum(-1, keepdim=True) + 1e-6)")
            case "softplus":
                self.say(f"{w} = F.softplus({s})")
                self.say(f"{p} = {w} / ({total} + 1e-3)")
            case "stable_max":
                self.say(f"{w} = torch.where({s} >= 0, {s} + 1, 1 / (1 - {s}))")
                self.say(f"{p} = {w} / {total}")
            case "two_norm":
                self.say(f"{p} = F.normalize(torch.exp({s}), dim=-1)")
            case "log_plus_one":
                self.say(
                    f"{m} = torch.logaddexp({s}.logsumexp(-1, keepdim=True), torch.zeros((), dtype={s}.dtype))"
                )
                self.say(f"{p} = torch.exp({s} - {m})")
            case "gelu_one_norm":
                self.say(f"{w} = F.gelu({s}.clamp(min=-30.0))")
                self.say(f"{p} = {w} / ({w}.abs().sum(-1, keepdim=True) + 1e-2)")
            case "gated":
                self.say(f"{p} = {s}.softmax(-1) * torch.sigmoid({s})")
            case "sigmoid":
                self.say(f"{p} = torch.sigmoid({s} - 1.5)")
            case "relu_squared":
                self.say(f"{p} = F.relu({s}).square() / T")
            case "bare":
                self.say(f"{p} = {s} / T")
            case "relu_normalised":
                self.say(f"{w} = F.relu({s})")
                self.say(f"{p} = {w} / ({total} + 1e-3)")
            case "over_queries":
                self.say(f"{p} = {s}.softmax(-2)")
            case "both_ways":
                self.say(f"{p} = {s}.softmax(-1) * {s}.softmax(-2)")
            case "sharpened":
                self.say(f"{w} = {s}.softmax(-1) ** 2")
                self.say(f"{p} = {w} / {total}")
            case "no_nan":
                self.say(f"{p} = torch.nan_to_num({s}.softmax(-1), nan=0.0)")
            case "mixed":
                self.say(f"{p} = {self.mixed(f'{s}.softmax(-1)')}")
            case "zeroed":
                self.say(f"{p} = {s}.softmax(-1).masked_fill(~keep, 0.0)")
            case _:
                self.say(f"{p} = torch.where(keep.any(-1, keepdim=True), {s}.softmax(-1), 0.0)")
        if self.c.masking == "multiply_late" and self.c.mask not in ("none", "additive"):
            self.say(f"{p} = {p} * keep")

    def _product(self, p: str, v: str, o: str, n: str) -> None:
        c = self.c
        letters = _FIVE_LETTERS if c.is_five else _PLAIN_LETTERS
        if c.layout == "bshd_einsum":
            letters = ("", "bhqk,bkhe->bqhe")
        match c.product:
            case "matmul":
                self.say(f"{o} = {p} @ {v}")
            case "einsum":
                wide = f"{v}.expand(-1, -1, G, -1, -1)" if c.is_five else v
                self.say(f"{o} = torch.einsum('{letters[1]}', {p}, {wide})")
            case "bmm":
                self.say(f"{o} = torch.bmm({p}.flatten(0, 1), {v}.flatten(0, 1))")
                self.say(f"{o} = {o}.unflatten(0, (B, H * G))")
            case _:
                self.say(f"{o} = ({p}[..., None] * {v}[..., None, :, :]).sum(-2)")
        if c.weights == "late":
            divisor = f"{p}.sum(-1, keepdim=True)"
            if c.layout == "bshd_einsum":
                divisor += ".transpose(1, 2)"
            self.say(f"{o} = {o} / {divisor}")

    def _outputs(self) -> None:
        c = self.c
        T = self.keys
        results = ["o"]
        match c.two:
            case "one":
                self._product("p", "v", "o", "")
            case "difference" | "added" | "two_masks":
                self._product("p", "v", "o", "")
                self._product("p2", "v", "o2", "2")
                sign = "- 0.3 *" if c.two == "difference" else "+"
                self.say(f"o = o {sign} o2")
            case "difference_of_weights":
                self._product("(p - 0.3 * p2)", "v", "o", "")
            case _:
                rows = (T, "H * G") if c.layout == "bshd_einsum" else ("H * G", T)
                self.random("u", "B", *rows, "3")
                if c.is_five:
                    self.say("u = u.unflatten(1, (H, G))")
                self._product("p", "v", "o", "")
                saved, self.c = self.c, _with_expanded_u(c)
                self._product("p", "u", "o2", "2")
                self.c = saved
                results.append("o2")
        self._extra(results)
        self._epilogue()
        self.say(f"return {', '.join(results)}")

    def _extra(self, results: list[str]) -> None:
        match self.c.extra:
            case "none":
                return
            case "lse":
                self.say("z = torch.logsumexp(s, -1)")
            case "peak":
                self.say("z = s.amax(-1)")
            case "entropy":
                self.say("z = -(p * torch.log(p + 1e-6)).sum(-1)")
            case "entropy_of_logs":
                self.say("z = -(p * F.log_softmax(s.clamp(min=-50.0), -1)).sum(-1)")
            case "column_sums":
                self.say("z = p.sum(-2)")
            case "argmax":
                self.say("z = s.argmax(-1)")
            case "argmax_of_weights":
                self.say("z = p.argmax(-1)")
            case "largest_weight":
                self.say("z = p.max(-1).values")
            case "expected_key":
                self.positions()
                self.say("z = (p * j).sum(-1)")
            case "score_mean":
                self.say("z = s.mean(-1)")
            case "least":
                self.say("z = s.amin(-1)")
            case "variance":
                self.say("z = s.var(-1, unbiased=False)")
            case "received_most":
                self.say("z = p.amax(-2)")
            case _:
                self.say("z = (p * p).sum(-1)")
        results.append("z")

    def _epilogue(self) -> None:
        c = self.c
        if c.is_five:
            self.say("o = o.flatten(1, 2)")
        heads_first = c.layout != "bshd_einsum"
        shape = ("B", "H * G", "S") if heads_first else ("B", "S", "H * G")
        merge = "o.transpose(1, 2).flatten(2)" if heads_first else "o.flatten(2)"
        match c.epilogue:
            case "merge":
                self.say(f"o = {merge}")
            case "gate":
                self.random("gate", *shape, "E")
                self.say("o = o * torch.sigmoid(gate)")
            case "rms_norm":
                self.random("weight", "E")
                self.say("o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + 1e-5) * weight")
            case "layer_norm":
                self.random("weight", "E")
                self.say("o = F.layer_norm(o, (E,), weight)")
            case "projected":
                self.random("wo", "H * G * E", "6")
                self.say(f"o = {merge} @ wo")
            case "residual":
                self.random("r", *shape, "E")
                self.say("o = r + 0.5 * o")
            case "mean_rows":
                self.say(f"o = o.mean({2 if heads_first else 1})")
            case "silu":
                self.say("o = F.silu(o)")
            case "merge_gate":
                self.random("gate", "B", "S", "H * G * E")
                self.say(f"o = {merge} * F.silu(gate)")
            case "head_sum":
                self.say(f"o = o.sum({1 if heads_first else 2})")

    # -- The file

    def _file(self) -> str:
        c = self.c
        names = list(self.arguments)
        made = "\n".join(f"    {name} = {text}" for name, text in self.arguments.items())
        nan = ""
        if c.values == "nan":
            nan = f"    {names[0]}.view(-1)[3 % {names[0]}.numel()] = float('nan')\n"
        body = "\n".join(f"    {line}" for line in self.lines)
        calls = f"CALLS = [{{}}, {{'S': {c.S + 3}, 'T': {c.keys + 3}}}]\n" if c.dynamic else ""
        sizes = f"B, H, G, D, E = {c.B}, {c.H}, {c.G}, {c.D}, {c.width}"
        return f'''"""Random program {c.seed}: {summary(c)}"""
import math

import torch
import torch.nn.functional as F

NEED = "random program {c.seed}"
SEED = {c.seed}
DTYPES = ["{c.dtype}"]
FUSED = False
DYNAMIC = {c.dynamic}
{calls}{sizes}


def make(device, dtype, scale, gen, S={c.S}, T={c.keys}):
    def rand(shape):
        return torch.randn(shape, generator=gen, dtype=torch.float64).to(dtype)

{made}
{nan}    return tuple(x.to(device) for x in ({", ".join(names)},))


def fn({", ".join(names)}):
{body}
'''


def _with_expanded_u(c: Choices) -> Choices:
    """For a second value tensor, which has all heads already."""
    return replace(c, product="matmul" if c.product == "einsum" and c.is_five else c.product)


def _gain(c: Choices) -> str:
    return {"large": " * 8", "huge": " * 60", "tiny": " * 1e-3"}.get(c.values, "")


def _offset(c: Choices) -> str:
    return " + 3" if c.values == "offset" else ""


def summary(c: Choices) -> str:
    """The choices that are not the plainest."""
    said = [f"{n}={getattr(c, n)}" for n, o in FEATURES.items() if getattr(c, n) != o[0]]
    return " ".join(said) or "plain attention"


def source(c: Choices) -> str:
    """The file of a program."""
    return _Writer(c).run()
