"""The paper's convolutional networks: LeNet, AlexNet, Inception-v3 (without its auxiliary head) and ResNet-101."""

from __future__ import annotations

import torch
from torch import nn


class LeNet(nn.Sequential):
    """Two convolutions and three dense layers, for images of 32 x 32."""

    def __init__(self, classes: int) -> None:
        super().__init__(
            nn.Sequential(nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
            nn.Sequential(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
            nn.Flatten(),
            nn.Sequential(nn.Linear(400, 120), nn.ReLU()),
            nn.Sequential(nn.Linear(120, 84), nn.ReLU()),
            nn.Linear(84, classes),
        )


class AlexNet(nn.Module):
    """One tower of five convolutions and three dense layers, for images of 224 x 224; `width` scales it down."""

    def __init__(self, classes: int, width: int, hidden: int) -> None:
        super().__init__()
        first, second, third, fourth = width, 3 * width, 6 * width, 4 * width
        self.features = nn.Sequential(
            nn.Conv2d(3, first, 11, stride=4, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
            nn.Conv2d(first, second, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
            nn.Conv2d(second, third, 3, padding=1), nn.ReLU(),
            nn.Conv2d(third, fourth, 3, padding=1), nn.ReLU(),
            nn.Conv2d(fourth, fourth, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2),
        )  # fmt: skip
        self.pool = nn.AdaptiveAvgPool2d(6)
        self.classifier = nn.Sequential(
            nn.Dropout(), nn.Linear(36 * fourth, hidden), nn.ReLU(),
            nn.Dropout(), nn.Linear(hidden, hidden), nn.ReLU(),
            nn.Linear(hidden, classes),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.classifier(self.pool(self.features(x)).flatten(1))
        return y


class ConvNorm(nn.Sequential):
    """A convolution without bias, batch norm, and ReLU unless it is left out."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        size: int | tuple[int, int],
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
        relu: bool = True,
        eps: float = 1e-5,
    ) -> None:
        layers: list[nn.Module] = [nn.Conv2d(inputs, outputs, size, stride, padding, bias=False)]
        layers += [nn.BatchNorm2d(outputs, eps=eps)] + ([nn.ReLU()] if relu else [])
        super().__init__(*layers)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            ConvNorm(inputs, width, 1),
            ConvNorm(width, width, 3, stride, 1),
            ConvNorm(width, 4 * width, 1, relu=False),
        )
        same = stride == 1 and inputs == 4 * width
        self.shortcut = nn.Identity() if same else ConvNorm(inputs, 4 * width, 1, stride, relu=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class ResNet(nn.Module):
    """Four stages of bottlenecks; (3, 4, 23, 3) is ResNet-101."""

    def __init__(self, blocks: tuple[int, ...], width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(ConvNorm(3, width, 7, 2, 3), nn.MaxPool2d(3, 2, 1))
        inputs, stages = width, []
        for stage, count in enumerate(blocks):
            for block in range(count):
                stages.append(Bottleneck(inputs, width << stage, 2 if stage and not block else 1))
                inputs = 4 * (width << stage)
        self.stages = nn.Sequential(*stages)
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(inputs, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(self.pool(self.stages(self.stem(x))).flatten(1))
        return y


class Branches(nn.Module):
    """Several branches of one input, side by side in the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class Inception(nn.Module):
    """Inception-v3 for images of 299 x 299; `divide` thins every layer."""

    def __init__(self, classes: int, divide: int) -> None:
        super().__init__()
        self.divide = divide
        self.stem = nn.Sequential(
            self._conv(3, 32, 3, 2), self._conv(32, 32, 3), self._conv(32, 64, 3, padding=1), nn.MaxPool2d(3, 2),
            self._conv(64, 80, 1), self._conv(80, 192, 3), nn.MaxPool2d(3, 2),
        )  # fmt: skip
        self.body = nn.Sequential(
            self._a(192, 32), self._a(256, 64), self._a(288, 64), self._b(288),
            self._c(768, 128), self._c(768, 160), self._c(768, 160), self._c(768, 192), self._d(768),
            self._e(1280), self._e(2048),
        )  # fmt: skip
        self.pool, self.drop = nn.AdaptiveAvgPool2d(1), nn.Dropout()
        self.head = nn.Linear(2048 // divide, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(self.drop(self.pool(self.body(self.stem(x)))).flatten(1))
        return y

    def _conv(
        self,
        inputs: int,
        outputs: int,
        size: int | tuple[int, int],
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
    ) -> ConvNorm:
        inputs = inputs if inputs == 3 else inputs // self.divide
        return ConvNorm(inputs, outputs // self.divide, size, stride, padding, eps=1e-3)

    def _row(self, inputs: int, outputs: int, count: int = 7) -> ConvNorm:
        return self._conv(inputs, outputs, (1, count), padding=(0, count // 2))

    def _column(self, inputs: int, outputs: int, count: int = 7) -> ConvNorm:
        return self._conv(inputs, outputs, (count, 1), padding=(count // 2, 0))

    def _pooled(self, inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(nn.AvgPool2d(3, 1, 1), self._conv(inputs, outputs, 1))

    def _a(self, inputs: int, pooled: int) -> Branches:
        conv = self._conv
        return Branches(
            conv(inputs, 64, 1),
            nn.Sequential(conv(inputs, 48, 1), conv(48, 64, 5, padding=2)),
            nn.Sequential(conv(inputs, 64, 1), conv(64, 96, 3, padding=1), conv(96, 96, 3, padding=1)),
            self._pooled(inputs, pooled),
        )

    def _b(self, inputs: int) -> Branches:
        conv = self._conv
        return Branches(
            conv(inputs, 384, 3, 2),
            nn.Sequential(conv(inputs, 64, 1), conv(64, 96, 3, padding=1), conv(96, 96, 3, 2)),
            nn.MaxPool2d(3, 2),
        )

    def _c(self, inputs: int, width: int) -> Branches:
        conv, row, column = self._conv, self._row, self._column
        return Branches(
            conv(inputs, 192, 1),
            nn.Sequential(conv(inputs, width, 1), row(width, width), column(width, 192)),
            nn.Sequential(
                conv(inputs, width, 1), column(width, width), row(width, width), column(width, width), row(width, 192)
            ),
            self._pooled(inputs, 192),
        )

    def _d(self, inputs: int) -> Branches:
        conv = self._conv
        return Branches(
            nn.Sequential(conv(inputs, 192, 1), conv(192, 320, 3, 2)),
            nn.Sequential(conv(inputs, 192, 1), self._row(192, 192), self._column(192, 192), conv(192, 192, 3, 2)),
            nn.MaxPool2d(3, 2),
        )

    def _e(self, inputs: int) -> Branches:
        def fork() -> Branches:
            return Branches(self._row(384, 384, 3), self._column(384, 384, 3))

        return Branches(
            self._conv(inputs, 320, 1),
            nn.Sequential(self._conv(inputs, 384, 1), fork()),
            nn.Sequential(self._conv(inputs, 448, 1), self._conv(448, 384, 3, padding=1), fork()),
            self._pooled(inputs, 192),
        )
