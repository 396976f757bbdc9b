"""A GAN: two training Graphs and one for images over the same two networks, as OneFlow's DCGAN."""

import numpy as np
import oneflow as flow
from telling import tell

Z, DIM, BATCH, STEPS = 6, 8, 8, 20


def to_tensor(x, grad=False, dtype=flow.float32):
    if not isinstance(x, np.ndarray):
        x = np.array(x)
    return flow.tensor(x, requires_grad=grad, dtype=dtype)


def to_numpy(x, mean=True):
    return (flow.mean(x) if mean else x).numpy()


class Generator(flow.nn.Module):
    """Noise to images."""

    def __init__(self):
        super().__init__()
        self.input_fc = flow.nn.Sequential(
            flow.nn.Linear(Z, 4 * 4 * DIM),
            flow.nn.BatchNorm1d(4 * 4 * DIM),
            flow.nn.LeakyReLU(0.3),
        )
        self.model = flow.nn.Sequential(
            flow.nn.ConvTranspose2d(DIM, DIM // 2, kernel_size=5, stride=1, padding=2),
            flow.nn.BatchNorm2d(DIM // 2),
            flow.nn.LeakyReLU(0.3),
            flow.nn.ConvTranspose2d(
                DIM // 2, 1, kernel_size=5, stride=2, padding=2, output_padding=1
            ),
            flow.nn.Tanh(),
        )

    def forward(self, x):
        return self.model(self.input_fc(x).reshape(*(-1, DIM, 4, 4)))


class Discriminator(flow.nn.Module):
    """Images to the probability that they are real."""

    def __init__(self):
        super().__init__()
        self.model = flow.nn.Sequential(
            flow.nn.Conv2d(1, DIM, kernel_size=5, stride=2, padding=2),
            flow.nn.LeakyReLU(0.3),
            flow.nn.Dropout(0.3),
        )
        self.fc = flow.nn.Linear(DIM * 4 * 4, 1)

    def forward(self, x):
        x1 = self.model(x).reshape(*(x.shape[0], -1))
        return flow.sigmoid(self.fc(x1)).flatten()


def discriminate(generator, discriminator, criterion, images, label1, label0, z):
    result = discriminator(flow.cat((images, generator(z)), dim=0))
    d_logits, g_logits = result[: images.shape[0]], result[images.shape[0] :]
    d_loss_real = criterion(d_logits, label1)
    d_loss_fake = criterion(g_logits, label0)
    d_loss = d_loss_fake + d_loss_real
    d_loss.backward()
    return d_loss, d_loss_fake, d_loss_real, d_logits, g_logits


def generate(generator, discriminator, criterion, label1, z):
    g_out = generator(z)
    g_logits = discriminator(g_out)
    g_loss = criterion(g_logits, label1)
    g_loss.backward()
    return g_loss, g_out, g_logits


class DiscriminatorTrainGraph(flow.nn.Graph):
    """A step of the discriminator alone."""

    def __init__(self, d, g, optimizer, loss):
        super().__init__()
        self.discriminator = d
        self.generator = g
        self.add_optimizer(optimizer)
        self.of_cross_entropy = loss

    def build(self, images, label1, label0, z):
        both = self.generator, self.discriminator
        return discriminate(*both, self.of_cross_entropy, images, label1, label0, z)


class GeneratorTrainGraph(flow.nn.Graph):
    """A step of the generator alone."""

    def __init__(self, d, g, optimizer, loss):
        super().__init__()
        self.discriminator = d
        self.generator = g
        self.add_optimizer(optimizer)
        self.of_cross_entropy = loss

    def build(self, label1, z):
        return generate(self.generator, self.discriminator, self.of_cross_entropy, label1, z)


class GeneratorEvalGraph(flow.nn.Graph):
    """Images."""

    def __init__(self, g):
        super().__init__()
        self.generator = g

    def build(self, z):
        with flow.no_grad():
            return self.generator(z)


class DCGAN(flow.nn.Module):
    """Both networks and their optimizers."""

    def __init__(self, is_graph):
        super().__init__()
        self.is_graph = is_graph
        self.fixed_z = to_tensor(np.random.normal(0, 1, size=(4, Z))).to("cuda")

    def noise(self):
        return to_tensor(np.random.normal(0, 1, size=(BATCH, Z)), False).to("cuda")

    def train(self):
        x = np.tanh(np.random.normal(0.7, 0.3, size=(STEPS * BATCH, 1, 8, 8)))
        label1 = to_tensor(np.ones(BATCH), False, dtype=flow.float32).to("cuda")
        label0 = flow.tensor((np.zeros(BATCH)), dtype=flow.float32).to("cuda")
        label1_smooth = (label1 - 0.15).to("cuda")
        self.generator = Generator().to("cuda")
        self.discriminator = Discriminator().to("cuda")
        both = self.generator, self.discriminator, flow.nn.BCELoss().to("cuda")
        optimizer_g = flow.optim.Adam(self.generator.parameters(), lr=2e-3)
        optimizer_d = flow.optim.Adam(self.discriminator.parameters(), lr=2e-3)
        graphs = ()
        if self.is_graph:
            g, d, loss = both
            graphs = (
                DiscriminatorTrainGraph(d, g, optimizer_d, loss),
                GeneratorTrainGraph(d, g, optimizer_g, loss),
                GeneratorEvalGraph(g),
            )
        d_losses, g_losses = [], []
        self.generator.train()
        self.discriminator.train()
        for batch_idx in range(STEPS):
            part = x[batch_idx * BATCH : (batch_idx + 1) * BATCH].astype(np.float32)
            images = to_tensor(part).to("cuda")
            given = images, label1_smooth, label0, self.noise()
            if self.is_graph:
                d_loss, d_fake, d_real, d_x, d_gz = graphs[0](*given)
                g_loss, _g_out, _d_gz = graphs[1](label1, self.noise())
            else:
                d_loss, d_fake, d_real, d_x, d_gz = discriminate(*both, *given)
                optimizer_d.step()
                optimizer_d.zero_grad()
                self.generator.zero_grad()
                g_loss, _g_out, _d_gz = generate(*both, label1, self.noise())
                optimizer_g.step()
                optimizer_g.zero_grad()
                self.discriminator.zero_grad()
            told = [to_numpy(one).item() for one in (d_loss, d_fake, d_real, d_x, d_gz)]
            d_losses.append(told[0])
            g_losses.append(to_numpy(g_loss).item())
        if self.is_graph:
            shown = to_numpy(graphs[2](self.fixed_z), False)
        else:
            with flow.no_grad():
                shown = to_numpy(self.generator(self.fixed_z), False)
        way = "graph" if self.is_graph else "eager"
        tell(way, d_losses, *graphs, generator=g_losses, shown=shown.ravel().tolist())


if __name__ == "__main__":
    for is_graph in (False, True):
        np.random.seed(0)
        flow.manual_seed(0)
        DCGAN(is_graph).train()
