"""Heads of the convolutional autoencoders: the error of the reconstruction at each pixel."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from bgad.config import Config
from bgad.config.unsupervised import AutoencoderConfig
from bgad.model.heads.base import FeatureSpec, Head, HeadOutput
from bgad.model.scoring import map_score
from bgad.model.ssim import ssim_map

COARSEST = 8  # pixels: the encoder halves an image until it is not larger, then takes it as a whole
SLOPE = 0.2  # of the leaky rectifier; as printed


class AutoencoderHead(Head):
    """A convolutional encoder to a short vector, and its mirror image as the decoder."""

    def __init__(self, config: Config, spec: FeatureSpec) -> None:
        super().__init__(config, spec)
        settings = config.baseline
        assert isinstance(settings, AutoencoderConfig)  # noqa: S101 - Config.check ensures it
        encoder, decoder = list[nn.Module](), list[nn.Module]()
        channels, side = 3, spec.size
        while side > COARSEST and side % 2 == 0:
            out, side = settings.width * max(1, 64 // side), side // 2
            encoder += [nn.Conv2d(channels, out, 4, 2, 1), nn.LeakyReLU(SLOPE), *_same(out)]
            decoder = [*_same(out), nn.ConvTranspose2d(out, channels, 4, 2, 1), nn.LeakyReLU(SLOPE), *decoder]
            channels = out
        decoder[-1] = nn.Sigmoid()
        self.encoder = nn.Sequential(*encoder, nn.Conv2d(channels, settings.latent, side))
        self.decoder = nn.Sequential(nn.ConvTranspose2d(settings.latent, channels, side), nn.LeakyReLU(SLOPE), *decoder)

    def errors(self, images: Tensor) -> Tensor:
        """Images (B, 3, S, S) -> the error of their reconstruction at each pixel (B, S, S), and the loss: its mean."""
        raise NotImplementedError

    def forward(self, maps: Sequence[Tensor]) -> HeadOutput:
        """See Head."""
        errors = self.errors(maps[0])
        return HeadOutput(map_score(errors, 0.0), errors)


class AeMseHead(AutoencoderHead):
    """Squared error."""

    def errors(self, images: Tensor) -> Tensor:
        """See AutoencoderHead."""
        errors: Tensor = (images - self.decoder(self.encoder(images))).square().mean(1)
        return errors


class AeSsimHead(AutoencoderHead):
    """1 - structural similarity."""

    def errors(self, images: Tensor) -> Tensor:
        """See AutoencoderHead."""
        return 1 - ssim_map(images, self.decoder(self.encoder(images)))


def _same(channels: int) -> list[nn.Module]:
    return [nn.Conv2d(channels, channels, 3, 1, 1), nn.LeakyReLU(SLOPE)]
